"""The real images: exact counts and names, no image twice, pinned index lists."""

from __future__ import annotations

import os

import pytest
import torch

from classgrad.data import Dataset, load
from classgrad.data._authors import POOLS
from classgrad.data._cifar_files import read_cifar
from classgrad.data._cifar_layouts import CIFAR
from classgrad.data._cifar_names import CIFAR10, CIFAR100
from classgrad.data._normalization import moments
from classgrad.data._places import Where
from classgrad.data._pool import Pool

pytestmark = [
    pytest.mark.cifar,
    pytest.mark.skipif("CLASSGRAD_DATA" not in os.environ, reason="CLASSGRAD_DATA names no folder with CIFAR"),
]

MUL10 = (5000, 3000, 1800, 1080, 648, 389, 233, 140, 84, 50)
MUL10_AUTHORS = (4944, 2964, 1776, 1068, 636, 384, 228, 144, 84, 48)
MUL10_FIELD = (5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50)
ANIMALS = frozenset(("bird", "cat", "deer", "dog", "frog", "horse"))

# name, protocol, options -> classes, training counts (or their sum), held-out counts, fingerprint
# fmt: off
FACTS = [
    ("bi7a", "paper", {}, ("truck", "automobile"), (5000, 714), 150,
     "d6d9af2fe1dfa2280b934e399e9492802e7f254dbd4e5e0e8ad9c318953ebc20"),
    ("bi7a", "authors", {}, ("automobile", "truck"), (4480, 640), 150,
     "e004d0e57633cd21c8af10ea0c40dadccf4e9712d85d0c8c24722c0d49716a13"),
    ("bi7a", "authors", {"composition": "balanced", "batch_size": 400}, ("automobile", "truck"), (5000, 5000), 150,
     "4eeb8f598c31d0830e444dbb20a3a77e7af97ea225a018a03551adbd58a8ca7d"),
    ("bi7b", "paper", {}, ("horse", "deer"), (5000, 714), 150,
     "6b10af846ee31256a161a868dccc323718b907e837e1848c449921473668eb3b"),
    ("bi7b", "authors", {}, ("horse", "deer"), (4480, 640), 150,
     "4a891223c3f0ba359b48da53bd2a2e2e40e3ff065cc2719d9f16dc83cba0ad27"),
    ("bi7b", "authors", {"composition": "balanced"}, ("horse", "deer"), (4608, 4608), 150,
     "759e8aa66f557ad12c6a370d585199419546f66f7fbdeac8c2a279b8d509bcfd"),
    ("bi60", "paper", {}, ("animals", "vehicles"), (30000, 500), 600,
     "f8c4b10ea6554ca772ff6f4e6ef8bd9dda5058b7245aa0c2e419979211940b51"),
    ("bi60", "authors", {}, ("animals", "vehicles"), (29232, 464), (900, 600),
     "72656556807f5fa9da9f4a8b79ab099808b9d300a53999fd624930cbcc932799"),
    ("bi60", "authors", {"composition": "balanced"}, ("animals", "vehicles"), (19890, 19968), (900, 600),
     "a382877dfb55bcb09a641ffb1a42d45de631d3cee980f4d99b036a2950d0ed01"),
    ("mul10", "paper", {}, CIFAR10, MUL10, 150,
     "3884d883a1ab1ad6b999235bd2ed8611aae0aa94bf3be8be8fc31133226d9d7a"),
    ("mul10", "authors", {}, CIFAR10, MUL10_AUTHORS, 150,
     "90153fbd77659b446eddee29a0ec02bfa83aff6b78fed99a5075c8ec49eafe7a"),
    ("mul10", "authors", {"composition": "balanced"}, CIFAR10, (4998,) * 10, 150,
     "32e03a04442c1bb943b99c50b7f87534616ca731843b6f6df7ceb4cc743f355e"),
    ("mul100", "paper", {}, CIFAR100, 11000, 50,
     "c3d6801ecbb8765d8c94b97851eec22809752298ea1de2a3308fec0a5144efa8"),
    ("mul100", "authors", {}, CIFAR100, 10570, 50,
     "f2e815b449f3244a1dc3db8041f9d7c78ce4f5c1ae9237cc6969e70c068ed452"),
    ("mul100", "authors", {"composition": "mixed"}, CIFAR100, 10952, 50,
     "404e2253209f391ef2a79288c17732172d449994d6ca2405f91be46c470e60a2"),
    ("mul100", "authors", {"composition": "balanced"}, CIFAR100, (500,) * 100, 50,
     "b45ca68a04611959ad0db87dbf242b814e58d43be6affe864639753b7d5485af"),
    ("cifar10-lt", "paper", {}, CIFAR10, MUL10_FIELD, 1000,
     "dde4eb5f710741e07c4e9ff3cff4f38c60ac86470766b6983e531db77b2815d4"),
    ("cifar10-lt", "paper", {"profile": "step", "imbalance": 10, "validation_per_class": 500}, CIFAR10,
     (5000,) * 5 + (500,) * 5, 500,
     "156908ff2c85389224e099c464b42854caf75802b3fe8b4a19d8850c70f9bb30"),
    ("cifar100-lt", "paper", {}, CIFAR100, 10847, 100,
     "a89cc9e186693037694816c087e8927e704067c0493ec323c06bb748d7d464eb"),
]
# fmt: on


@pytest.fixture(scope="module")
def pools() -> dict[str, Pool]:
    return {name: read_cifar(wanted, Where()) for name, wanted in CIFAR.items()}


@pytest.fixture(autouse=True)
def _read_once(pools: dict[str, Pool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("classgrad.data._recipes.read_cifar", lambda wanted, where: pools[wanted.name])


def belongs(own: str, named: str) -> bool:
    if named in ("animals", "vehicles"):
        return (own in ANIMALS) == (named == "animals")
    return own == named


def check_no_image_twice(data: Dataset) -> None:
    indices = torch.cat([split.indices for split in data.splits.values()])
    assert len(indices.unique()) == len(indices)
    assert int(data.train.indices.max()) < 50000 <= int(data.test.indices.min())


@pytest.mark.parametrize(("name", "protocol", "options", "classes", "train", "held_out", "fingerprint"), FACTS)
def test_every_recipe(
    name: str,
    protocol: str,
    options: dict,
    classes: tuple[str, ...],
    train: tuple[int, ...] | int,
    held_out: tuple[int, ...] | int,
    fingerprint: str,
    pools: dict[str, Pool],
) -> None:
    data = load(name, protocol=protocol, **options)
    assert data.classes == classes
    counts = data.counts
    assert counts["train"] == train or sum(counts["train"]) == train
    assert counts["test"] == (held_out if isinstance(held_out, tuple) else (held_out,) * len(classes))
    assert counts["validation"] in (counts["test"], (0,) * len(classes))
    assert data.fingerprint == fingerprint
    check_no_image_twice(data)
    pool = pools["cifar100" if "100" in name else "cifar10"]
    for split in data.splits.values():
        for label, named in enumerate(data.classes):
            members = [c for c, own in enumerate(pool.classes) if belongs(own, named)]
            own = torch.cat([torch.cat([pool.train[c], pool.held_out[c]]) for c in members])
            assert torch.isin(split.indices[split.y == label], own).all()


def test_the_authors_constants_are_those_of_parts_of_cifar(pools: dict[str, Pool]) -> None:
    images = pools["cifar10"].images
    mean, std = POOLS["cifar10"].normalization
    birds_and_cats = images[torch.cat([pools["cifar10"].train[2], pools["cifar10"].train[3]])]
    assert moments(birds_and_cats)[0] == pytest.approx(mean, abs=1e-6)
    assert moments(images[:50000])[1] == pytest.approx(std, abs=1e-6)
    mean, std = POOLS["cifar100"].normalization
    assert moments(pools["cifar100"].images[:50000])[0] == pytest.approx(mean, abs=1e-6)
    assert moments(pools["cifar100"].images[:50000])[1] == pytest.approx(std, abs=1e-6)

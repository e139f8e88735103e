from __future__ import annotations

from statistics import NormalDist

import pytest
import torch

from classgrad import InputError
from classgrad.data import gaussian_classes, load


@pytest.mark.parametrize("overlap", [0.01, 0.05, 0.3])
@pytest.mark.parametrize("classes", [2, 4])
def test_the_overlap_is_the_share_nearer_to_another_mean(overlap: float, classes: int) -> None:
    data = gaussian_classes([2] * classes, overlap=overlap, test_per_class=20_000, dimension=6, seed=1)
    means = torch.eye(classes, 6) * (-2 * NormalDist().inv_cdf(overlap) / 2**0.5)
    distances = torch.cdist(data.test.x, means)
    for own in range(classes):
        for other in set(range(classes)) - {own}:
            mine = data.test.y == own
            share = float((distances[mine, other] < distances[mine, own]).double().mean())
            assert share == pytest.approx(overlap, abs=4 * (overlap * (1 - overlap) / 20_000) ** 0.5)


def test_each_class_has_its_noise() -> None:
    data = gaussian_classes([5, 5, 5], noise=[0.5, 1.0, 3.0], dimension=10, test_per_class=5000)
    for label, noise in enumerate([0.5, 1.0, 3.0]):
        own = data.test.x[data.test.y == label]
        assert float(own.std(dim=0).mean()) == pytest.approx(noise, rel=0.03)


def test_splits_counts_and_normalization() -> None:
    data = gaussian_classes([50, 3], test_per_class=7)
    assert data.counts == {"train": (50, 3), "validation": (7, 7), "test": (7, 7)}
    indices = torch.cat([split.indices for split in data.splits.values()])
    assert indices.tolist() == list(range(53 + 28))
    x = data.preprocessing.normalize(data.train.x, torch.float64)
    torch.testing.assert_close(x.mean(dim=0), torch.zeros(20).double(), atol=1e-7, rtol=0)
    torch.testing.assert_close(x.std(dim=0, unbiased=False), torch.ones(20).double())


def test_the_seed_decides() -> None:
    first, again, other = (gaussian_classes([9, 3], seed=seed) for seed in (4, 4, 5))
    assert torch.equal(first.train.x, again.train.x)
    assert first.fingerprint == again.fingerprint
    assert not torch.equal(first.train.x, other.train.x)
    assert first.fingerprint != other.fingerprint


def test_the_global_generator_is_left_alone() -> None:
    state = torch.get_rng_state()
    gaussian_classes([9, 3])
    assert torch.equal(torch.get_rng_state(), state)


def test_the_recipes() -> None:
    data = load("gaussian-bi60")
    assert data.counts == {"train": (3000, 50), "validation": (500, 500), "test": (500, 500)}
    assert (data.rho, data.name) == (60.0, "gaussian-bi60")
    assert load("gaussian", classes=3, majority=400, imbalance=4, noise=[1, 2, 3]).counts["train"] == (400, 200, 100)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"counts": [5]}, "counts must name at least 2 classes, found 1"),
        ({"counts": [5, 0]}, "counts must be a whole number of at least 1, found 0"),
        ({"dimension": 1}, "dimension must be a whole number of at least 2, found 1"),
        ({"overlap": 0.5}, "overlap must be a number above 0 and below 0.5, found 0.5"),
        ({"overlap": 0}, "overlap must be a number above 0"),
        ({"overlap": True}, "overlap must be a number"),
        ({"noise": 0}, "noise must be a number above 0, found 0"),
        ({"noise": [1.0, 1.0, 1.0]}, "one for each of the 2 classes, found 3"),
        ({"noise": "loud"}, "noise must be .* found"),
        ({"test_per_class": 0}, "test_per_class must be"),
        ({"seed": -1}, "seed must be a whole number of at least 0, found -1"),
    ],
)
def test_bad_parameters(options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        gaussian_classes(**{"counts": [5, 5], **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": 1}, "classes must be a whole number of at least 2, found 1"),
        ({"imbalance": 0.5}, "imbalance .* at least 1, found 0.5"),
        ({"majority": 10, "imbalance": 100}, "counts must be a whole number of at least 1, found 0"),
    ],
)
def test_bad_options_of_the_recipe(options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load("gaussian", **options)

from __future__ import annotations

import pytest
import torch

from classgrad import InputError
from classgrad.data import Dataset, load, recipes
from classgrad.data._authors import AUTHORS, POOLS, authors_groups, batch_shares
from classgrad.data._cifar_names import CIFAR10, CIFAR100
from classgrad.data._pool import Pool

PAPERS = ["bi7a", "bi7b", "bi60", "mul10", "mul100"]
ANIMALS = ("bird", "cat", "deer", "dog", "frog", "horse")


def check_selection(data: Dataset, pool: Pool) -> None:
    """Every example is what its index says, and in one split only."""
    label_of = {int(i): c for part in (pool.train, pool.held_out) for c, where in enumerate(part) for i in where}
    seen: list[int] = []
    for split in data.splits.values():
        torch.testing.assert_close(split.x, pool.images[split.indices], rtol=0, atol=0)
        assert split.indices.tolist() == sorted(set(split.indices.tolist()))
        for index, label in zip(split.indices.tolist(), split.y.tolist(), strict=True):
            own = pool.classes[label_of[index]]
            named = data.classes[label]
            assert named == own or (named == "animals") == (own in ANIMALS)
        seen += split.indices.tolist()
    assert len(seen) == len(set(seen))
    assert int(data.train.indices.max()) < 50000 <= int(data.test.indices.min())


def nearest(values: list[float]) -> tuple[int, ...]:
    return tuple(int(v + 0.5) for v in values)


PAPER_FACTS = {
    "bi7a": (("truck", "automobile"), (5000, 714), (150, 150)),
    "bi7b": (("horse", "deer"), (5000, 714), (150, 150)),
    "bi60": (("animals", "vehicles"), (30000, 500), (600, 600)),
    "mul10": (CIFAR10, nearest([5000 * 0.6**i for i in range(10)]), (150,) * 10),
    "mul100": (CIFAR100, nearest([500 * 0.955**i for i in range(100)]), (50,) * 100),
}


@pytest.mark.parametrize("name", PAPERS)
def test_the_papers_protocol(name: str, pixel_cifar: dict[str, Pool]) -> None:
    data = load(name)
    classes, train, test = PAPER_FACTS[name]
    assert data.classes == classes
    assert data.counts == {"train": train, "validation": test, "test": test}
    assert data.protocol == "paper"
    check_selection(data, pixel_cifar["cifar100" if name == "mul100" else "cifar10"])
    values = data.train.x.double() / 255
    torch.testing.assert_close(torch.tensor(data.mean).double(), values.mean(dim=(0, 2, 3)), rtol=1e-6, atol=0)
    torch.testing.assert_close(
        torch.tensor(data.std).double(), values.std(dim=(0, 2, 3), unbiased=False), rtol=1e-6, atol=0
    )


def test_superclasses_are_distributed_equally(pixel_cifar: dict[str, Pool]) -> None:
    data, pool = load("bi60"), pixel_cifar["cifar10"]
    for split, animals, vehicles in ((data.train, 5000, 125), (data.validation, 100, 150), (data.test, 100, 150)):
        for label, name in enumerate(pool.classes):
            own = torch.cat([pool.train[label], pool.held_out[label]])
            assert int(torch.isin(split.indices, own).sum()) == (animals if name in ANIMALS else vehicles)


def test_the_rounded_sizes_of_mul10_add_up() -> None:
    assert sum(PAPER_FACTS["mul10"][1]) == 12424
    assert PAPER_FACTS["mul10"][1][-1] == 50
    assert PAPER_FACTS["mul100"][1][-1] == 5


# What the released code was seen to keep when it was run: (dataset, batch size, composition) -> counts.
EXECUTED = [
    ("bi7a", 400, "proportional", (4900, 700)),
    ("bi7a", 400, "balanced", (5000, 5000)),
    ("bi7a", 1024, "proportional", (4480, 640)),
    ("bi7a", 5714, "proportional", (5000, 714)),
    ("bi7a", 2857, "proportional", (5000, 714)),
    ("bi60", 1024, "proportional", (29232, 464)),
    ("bi60", 1024, "balanced", (19890, 19968)),
    *(("bi60", size, "proportional", (30000, 500)) for size in (30500, 6100, 1220, 244)),
    ("mul10", 1024, "proportional", (4944, 2964, 1776, 1068, 636, 384, 228, 144, 84, 48)),
    ("mul10", 1024, "balanced", (4998,) * 10),
    ("mul10", 12424, "proportional", (5000, 3000, 1800, 1080, 648, 389, 233, 140, 84, 50)),
    ("mul100", 400, "balanced", (500,) * 100),
]


@pytest.mark.parametrize(("name", "batch_size", "composition", "counts"), EXECUTED)
def test_the_authors_training_sets(name: str, batch_size: int, composition: str, counts: tuple[int, ...]) -> None:
    groups = authors_groups(AUTHORS[name], batch_size=batch_size, composition=composition, test_per_class=None)
    assert tuple(group.train * len(group.members) for group in groups) == counts


@pytest.mark.parametrize(("batch_size", "ratio"), [(610, 75), (128, 31)])
def test_the_authors_ratio_is_that_of_rounded_batches(batch_size: int, ratio: int) -> None:
    majority, minority = batch_shares(AUTHORS["bi60"], batch_size, balanced=False)
    assert majority * 6 // (minority * 4) == ratio


AUTHORS_FACTS = {
    "bi7a": (("automobile", "truck"), (150, 150)),
    "bi7b": (("horse", "deer"), (150, 150)),
    "bi60": (("animals", "vehicles"), (900, 600)),
    "mul10": (CIFAR10, (150,) * 10),
    "mul100": (CIFAR100, (50,) * 100),
}


@pytest.mark.parametrize("name", PAPERS)
@pytest.mark.parametrize("composition", ["proportional", "balanced"])
def test_the_authors_protocol(name: str, composition: str, pixel_cifar: dict[str, Pool]) -> None:
    data = load(name, protocol="authors", composition=composition)
    classes, test = AUTHORS_FACTS[name]
    assert (data.classes, data.protocol) == (classes, "authors")
    assert data.counts["validation"] == data.counts["test"] == test
    pool = pixel_cifar[AUTHORS[name].pool]
    check_selection(data, pool)
    assert (data.mean, data.std) == POOLS[AUTHORS[name].pool].normalization
    for members, kept in zip(AUTHORS[name].classes.values(), data.counts["train"], strict=True):
        for member in members:  # the first images of each CIFAR class in the official order
            first = pool.train[member][: kept // len(members)]
            assert torch.isin(first, data.train.indices).all()


def test_the_authors_later_evaluation_takes_half_of_the_test_images(pixel_cifar: dict[str, Pool]) -> None:
    data = load("bi60", protocol="authors", test_per_class=500)
    assert data.counts["test"] == data.counts["validation"] == (3000, 2000)
    assert len(data.test) + len(data.validation) == 10000


def test_the_authors_mixed_set_rounds_down(pixel_cifar: dict[str, Pool]) -> None:
    counts = load("mul100", protocol="authors", composition="mixed").counts["train"]
    assert counts[:2] == (500, 477)
    assert counts[-1] == 5
    assert sum(counts) == 10952


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mul100", {"batch_size": 400}, r"leaves a class without images in a batch: use at least 1050"),
        ("mul100", {"batch_size": 1049}, r"use at least 1050"),
        ("mul10", {"batch_size": 4, "composition": "balanced"}, r"use at least 6"),
        ("bi7a", {"batch_size": 6000}, r"asks for 5250 images of a class that has 5000"),
        ("bi7a", {"batch_size": 0}, r"batch_size must be a whole number of at least 1, found 0"),
        ("bi7a", {"batch_size": "big"}, r"batch_size must be a whole number of at least 1, found 'big'"),
        ("bi7a", {"composition": "even"}, r"composition must be one of proportional, balanced, mixed, found 'even'"),
        ("bi60", {"composition": "mixed"}, r"is for classes that are single CIFAR classes"),
        ("bi7a", {"test_per_class": 501}, r"test_per_class must be at most 500, half of a class, found 501"),
        ("bi7a", {"imbalance": 3}, r"bi7a has no option 'imbalance': it takes composition, batch_size, test_per_class"),
    ],
)
def test_bad_options_of_the_authors_protocol(name: str, options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(name, protocol="authors", **options)


def test_the_smallest_batch_that_works_does_work() -> None:
    assert min(batch_shares(AUTHORS["mul100"], 1050, balanced=False)) == 1
    assert min(batch_shares(AUTHORS["mul100"], 1049, balanced=False)) == 0


@pytest.mark.parametrize(
    ("name", "options", "first", "last", "total"),
    [
        ("cifar10-lt", {}, 5000, 50, 12406),
        ("cifar10-lt", {"imbalance": 50}, 5000, 100, 13996),
        ("cifar10-lt", {"imbalance": 10}, 5000, 500, 20431),
        ("cifar100-lt", {}, 500, 5, 10847),
        ("cifar10-lt", {"profile": "step"}, 5000, 50, 25250),
        ("cifar10-lt", {"imbalance": 1}, 5000, 5000, 50000),
    ],
)
def test_the_fields_long_tails(
    name: str, options: dict, first: int, last: int, total: int, pixel_cifar: dict[str, Pool]
) -> None:
    data = load(name, **options)
    train = data.counts["train"]
    assert (train[0], train[-1], sum(train)) == (first, last, total)
    assert data.splits.keys() == {"train", "test"}
    assert sum(data.counts["test"]) == 10000
    check_selection(data, pixel_cifar["cifar10" if name == "cifar10-lt" else "cifar100"])


def test_a_long_tail_may_hold_out_a_validation_split(pixel_cifar: dict[str, Pool]) -> None:
    data = load("cifar10-lt", validation_per_class=300)
    assert data.counts["validation"] == (300,) * 10
    assert data.counts["test"] == (700,) * 10
    check_selection(data, pixel_cifar["cifar10"])


def test_any_dict_of_counts(pixel_cifar: dict[str, Pool]) -> None:
    data = load("cifar10", counts={"cat": 40, 5: 7, "ship": 3})
    assert data.classes == ("cat", "dog", "ship")
    assert data.counts["train"] == (40, 7, 3)
    assert data.rho == 40 / 3
    check_selection(data, pixel_cifar["cifar10"])
    assert load("cifar100").counts["train"] == (500,) * 100


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("cifar10-lt", {"imbalance": 0.01}, r"imbalance \(largest class over smallest\) must be a number at least 1"),
        ("cifar10-lt", {"imbalance": float("nan")}, r"imbalance .* found nan"),
        ("cifar100-lt", {"imbalance": 501}, r"imbalance must be at most 500 to leave every class an image, found 501"),
        ("cifar10-lt", {"profile": "linear"}, r"profile must be one of exp, step, found 'linear'"),
        ("cifar10-lt", {"validation_per_class": 1000}, r"validation_per_class must be below 1000"),
        ("cifar10", {"counts": {"cat": 5}}, r"counts must be a dict of at least 2 classes"),
        ("cifar10", {"counts": "cat"}, r"counts must be a dict"),
        ("cifar10", {"counts": {"cat": 5, "cow": 5}}, r"counts must name classes of airplane, .* truck, found 'cow'"),
        ("cifar100", {"counts": {"cow": 5, "apple": 5}}, r"bowl ... .*found 'cow'|bottle \.\.\., found 'cow'"),
        ("cifar10", {"counts": {"cat": 5, 3: 5}}, r"counts must name each class once"),
        ("cifar10", {"counts": {"cat": 5, 10: 5}}, r"found 10"),
        ("cifar10", {"counts": {"cat": 0, "dog": 5}}, r"counts\['cat'\] must be a whole number of at least 1, found 0"),
        ("cifar10", {"counts": {"cat": 5001, "dog": 5}}, r"class 'cat' has 5000 training images, 5001 were asked for"),
        ("digits", {"counts": {"3": 200, "5": 5}}, r"class '3' has 129 training images, 200 were asked for"),
    ],
)
def test_bad_options(name: str, options: dict, message: str, pixel_cifar: dict[str, Pool]) -> None:
    with pytest.raises(InputError, match=message):
        load(name, **options)


def test_more_held_out_images_than_there_are(pixel_cifar: dict[str, Pool]) -> None:
    from classgrad.data._pool import assemble, singles

    groups = singles(CIFAR10, [1, 1], validation=600, test=401)
    with pytest.raises(InputError, match=r"class 'airplane' has 1000 held-out images, 1001 were asked for"):
        assemble(pixel_cifar["cifar10"], groups, name="x")


DIGITS_FINGERPRINTS = {
    "digits-bi20": "98a74edeb7308dd3d153aaa4bf3a7d42d13ee88795fd08df9118203805ef5963",
    "digits-mul10": "aebb162b20e4",
    "digits": "054f508cec38",
}


@pytest.mark.parametrize(
    ("name", "classes", "train", "test"),
    [
        ("digits-bi20", ("even", "odd"), (600, 30), (135, 135)),
        ("digits-mul10", tuple("0123456789"), nearest([120 * 20 ** (-i / 9) for i in range(10)]), (27,) * 10),
        ("digits", tuple("0123456789"), (120,) * 10, (27,) * 10),
    ],
)
def test_the_digits(name: str, classes: tuple[str, ...], train: tuple[int, ...], test: tuple[int, ...]) -> None:
    from sklearn.datasets import load_digits

    bundle = load_digits()
    data = load(name)
    assert data.classes == classes
    assert data.counts == {"train": train, "validation": test, "test": test}
    assert data.fingerprint.startswith(DIGITS_FINGERPRINTS[name])
    indices = torch.cat([split.indices for split in data.splits.values()])
    assert len(indices.unique()) == len(indices)
    for split in data.splits.values():
        targets = bundle.target[split.indices.numpy()]
        expected = targets % 2 if name == "digits-bi20" else targets
        assert (split.y.numpy() == expected).all()
        levels = split.x[:, 0].double() * (16 / 255)
        assert float((levels - torch.from_numpy(bundle.images[split.indices.numpy()])).abs().max()) < 0.04


def test_digits_with_counts() -> None:
    data = load("digits", counts={"8": 100, 3: 5})
    assert data.classes == ("8", "3")
    assert data.counts == {"train": (100, 5), "validation": (27, 27), "test": (27, 27)}


def test_every_recipe_describes_itself() -> None:
    found = recipes()
    assert {"bi7a", "cifar10-lt", "digits-bi20", "gaussian"} <= found.keys()
    for recipe in found.values():
        assert recipe.summary
        assert recipe.protocols in ((), ("paper", "authors"))
    assert found["bi7a"].options() == {}
    assert found["bi7a"].options("authors") == {
        "composition": "proportional",
        "batch_size": None,
        "test_per_class": None,
    }
    assert found["cifar10-lt"].options() == {"imbalance": 100, "profile": "exp", "validation_per_class": 0}
    found.clear()
    assert recipes()


def test_fingerprints_tell_datasets_apart(pixel_cifar: dict[str, Pool]) -> None:
    found = [
        load("bi7b").fingerprint,
        load("bi7b", protocol="authors", batch_size=5714).fingerprint,  # the same images, another normalization
        load("bi7b", protocol="authors").fingerprint,
        load("bi7a").fingerprint,
        load("cifar10", counts={"horse": 5000, "deer": 714}).fingerprint,
    ]
    assert len(set(found)) == len(found)
    assert load("bi7b").fingerprint == found[0]

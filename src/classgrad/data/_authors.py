"""The paper's five datasets as the authors' released code makes them.

Its training set depends on the batch size B: a batch holds b_l images of each CIFAR class of class l, by the share of
the class and rounded half to even, and the first floor(N / max b) * b_l images of the CIFAR class are kept, so that all
classes have the same number of whole batches. With oversampling all b_l are equal, and so the minority classes are
given new images: the "+O" runs see (nearly) balanced data. Class roles follow the code: Bi7a's majority is automobile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from classgrad._errors import InputError
from classgrad.data._checks import choice, whole
from classgrad.data._cifar_names import CIFAR10, CIFAR100
from classgrad.data._paper import ANIMALS, VEHICLES
from classgrad.data._pool import Group, Normalization

COMPOSITIONS = ("proportional", "balanced", "mixed")


@dataclass(frozen=True)
class AuthorsRecipe:
    """Classes and imbalance of a dataset; ``ratio`` is that of each class to the one before it."""

    pool: str
    classes: dict[str, tuple[int, ...]]
    ratio: float
    batch_size: int


@dataclass(frozen=True)
class AuthorsPool:
    """Sizes of a CIFAR set's classes, how many of them validation and test take, and the code's normalization."""

    train: int
    held_out: int
    test_per_class: int
    normalization: Normalization


POOLS = {
    # The mean is that of bird and cat alone, the standard deviation that of all training images.
    "cifar10": AuthorsPool(
        5000,
        1000,
        150,
        ((0.49236655, 0.47394478, 0.41979155), (0.24703233, 0.24348505, 0.26158768)),
    ),
    "cifar100": AuthorsPool(
        500,
        100,
        50,
        ((0.5070746, 0.48654896, 0.44091788), (0.26733422, 0.25643846, 0.27615058)),
    ),
}

AUTHORS = {
    "bi7a": AuthorsRecipe("cifar10", {"automobile": (1,), "truck": (9,)}, 1 / 7, 1024),
    "bi7b": AuthorsRecipe("cifar10", {"horse": (7,), "deer": (4,)}, 1 / 7, 1024),
    "bi60": AuthorsRecipe("cifar10", {"animals": ANIMALS, "vehicles": VEHICLES}, 1 / 60, 1024),
    "mul10": AuthorsRecipe("cifar10", {name: (i,) for i, name in enumerate(CIFAR10)}, 0.6, 1024),
    "mul100": AuthorsRecipe("cifar100", {name: (i,) for i, name in enumerate(CIFAR100)}, 0.955, 1050),
}


def authors_groups(
    recipe: AuthorsRecipe, *, batch_size: int | None, composition: str, test_per_class: int | None
) -> tuple[Group, ...]:
    """Return the classes of ``recipe`` with the images the code keeps; docs/data.md describes the options."""
    pool = POOLS[recipe.pool]
    size = recipe.batch_size if batch_size is None else whole("batch_size", batch_size, least=1)
    held_out = pool.test_per_class if test_per_class is None else whole("test_per_class", test_per_class, least=1)
    if held_out > pool.held_out // 2:
        raise InputError(f"test_per_class must be at most {pool.held_out // 2}, half of a class, found {held_out}")
    kept = _kept(recipe, pool.train, size, choice("composition", composition, COMPOSITIONS))
    return tuple(
        Group(name, members, train=n, validation=held_out, test=held_out)
        for (name, members), n in zip(recipe.classes.items(), kept, strict=True)
    )


def _kept(recipe: AuthorsRecipe, available: int, batch_size: int, composition: str) -> list[int]:
    if composition == "mixed":
        if any(len(members) > 1 for members in recipe.classes.values()):
            raise InputError("composition 'mixed' is for classes that are single CIFAR classes: use 'proportional'")
        return [int(available * recipe.ratio**label) for label in range(len(recipe.classes))]
    shares = batch_shares(recipe, batch_size, balanced=composition == "balanced")
    if min(shares) == 0:
        smallest = _smallest_batch(recipe, batch_size, balanced=composition == "balanced")
        raise InputError(
            f"batch_size={batch_size} leaves a class without images in a batch: use at least {smallest} "
            f"(the authors' code stops there too)"
        )
    batches = available // max(shares)
    if batches == 0:
        raise InputError(
            f"batch_size={batch_size} asks for {max(shares)} images of a class that has {available}: use a smaller one"
        )
    return [batches * share for share in shares]


def batch_shares(recipe: AuthorsRecipe, batch_size: int, *, balanced: bool) -> Sequence[int]:
    """b_l: how many images of each CIFAR class of class l a batch holds."""
    ratio = 1.0 if balanced else recipe.ratio
    weights = [ratio**label for label in range(len(recipe.classes))]
    unit = batch_size / sum(weights)
    return [
        round(unit * weight / len(members))  # half to even, as numpy's rint
        for weight, members in zip(weights, recipe.classes.values(), strict=True)
    ]


def _smallest_batch(recipe: AuthorsRecipe, too_small: int, *, balanced: bool) -> int:
    size = too_small + 1
    while min(batch_shares(recipe, size, balanced=balanced)) == 0:
        size += 1
    return size

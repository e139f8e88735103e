"""The paper's five datasets as its App. F.2 describes them.

Where the text is silent: the images of a class are taken in the official order; the sizes of Mul10 and Mul100 are
rounded to the nearest whole number; validation and test come from CIFAR's test images, the first and the last of
each class; for Mul10 each takes 150 a class as for Bi7a and Bi7b, for Mul100 half of the 100 there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from classgrad.data._cifar_names import CIFAR10, CIFAR100
from classgrad.data._pool import Group, singles
from classgrad.data._profiles import geometric


@dataclass(frozen=True)
class PaperRecipe:
    """A CIFAR set and the classes made of it."""

    pool: str
    groups: tuple[Group, ...]


def _pair(majority: str, minority: str) -> PaperRecipe:
    members = [CIFAR10.index(majority), CIFAR10.index(minority)]
    return PaperRecipe("cifar10", singles(CIFAR10, [5000, 714], validation=150, test=150, members=members))


def _members(names: Sequence[str]) -> tuple[int, ...]:
    return tuple(CIFAR10.index(name) for name in names)


ANIMALS = _members(("bird", "cat", "deer", "dog", "frog", "horse"))
VEHICLES = _members(("airplane", "automobile", "ship", "truck"))

PAPER = {
    "bi7a": _pair("truck", "automobile"),
    "bi7b": _pair("horse", "deer"),
    "bi60": PaperRecipe(
        "cifar10",
        (
            Group("animals", ANIMALS, train=5000, validation=100, test=100),
            Group("vehicles", VEHICLES, train=125, validation=150, test=150),
        ),
    ),
    "mul10": PaperRecipe("cifar10", singles(CIFAR10, geometric(5000, 3 / 5, 10), validation=150, test=150)),
    "mul100": PaperRecipe("cifar100", singles(CIFAR100, geometric(500, 0.955, 100), validation=50, test=50)),
}

"""The datasets that have a name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from classgrad._errors import InputError
from classgrad.data._authors import AUTHORS, POOLS, authors_groups
from classgrad.data._checks import choice, number, whole
from classgrad.data._cifar_files import read_cifar
from classgrad.data._cifar_layouts import CIFAR
from classgrad.data._dataset import Dataset
from classgrad.data._digits import DIGITS, DIGITS_BI20, DIGITS_MUL10, EVALUATED, LARGEST, read_digits
from classgrad.data._gaussian import gaussian_classes
from classgrad.data._options import Build, option_defaults
from classgrad.data._paper import PAPER
from classgrad.data._places import Where
from classgrad.data._pool import Group, assemble, singles
from classgrad.data._profiles import PROFILES, geometric

PROTOCOLS = ("paper", "authors")


@dataclass(frozen=True)
class Recipe:
    """A named dataset: what it is, how it is built, and how the authors' code builds it where that is known."""

    summary: str
    build: Build
    build_authors: Build | None = None

    @property
    def protocols(self) -> tuple[str, ...]:
        """The protocols it can be built in; none if it is not one of the paper's datasets."""
        return () if self.build_authors is None else PROTOCOLS

    def builder(self, name: str, protocol: str) -> Build:
        """Return the function that builds it; ``name`` is for the error where there is no such protocol."""
        if protocol == "paper":
            return self.build
        if self.build_authors is None:
            raise InputError(f"protocol={protocol!r} is for the paper's datasets, {name} is none: leave it out")
        return self.build_authors

    def options(self, protocol: str = "paper") -> dict[str, Any]:
        """Return names and defaults of the options that :func:`load` takes for it."""
        return option_defaults(self.builder("this recipe", protocol))


def _of_the_paper(name: str, summary: str) -> Recipe:
    def build(where: Where) -> Dataset:
        recipe = PAPER[name]
        return assemble(read_cifar(CIFAR[recipe.pool], where), recipe.groups, name=name, protocol="paper")

    def build_authors(
        where: Where,
        *,
        composition: str = "proportional",
        batch_size: int | None = None,
        test_per_class: int | None = None,
    ) -> Dataset:
        recipe = AUTHORS[name]
        groups = authors_groups(recipe, batch_size=batch_size, composition=composition, test_per_class=test_per_class)
        pool = read_cifar(CIFAR[recipe.pool], where)
        normalization = POOLS[recipe.pool].normalization
        return assemble(pool, groups, name=name, protocol="authors", normalization=normalization)

    return Recipe(summary, build, build_authors)


def _long_tailed(cifar: str, largest: int) -> Recipe:
    wanted = CIFAR[cifar]

    def build(where: Where, *, imbalance: float = 100, profile: str = "exp", validation_per_class: int = 0) -> Dataset:
        number("imbalance (largest class over smallest)", imbalance, least=1)
        counts = PROFILES[choice("profile", profile, tuple(PROFILES))](largest, imbalance, len(wanted.classes))
        if min(counts) == 0:
            raise InputError(f"imbalance must be at most {largest} to leave every class an image, found {imbalance}")
        test = _rest_of_test(largest // 5, validation_per_class)
        groups = singles(wanted.classes, counts, validation=validation_per_class, test=test)
        return assemble(read_cifar(wanted, where), groups, name=f"{cifar}-lt")

    return Recipe(f"{cifar} with an exponential or a step imbalance, as usual in the field", build)


def _whole_cifar(cifar: str, largest: int) -> Recipe:
    wanted = CIFAR[cifar]

    def build(where: Where, *, counts: Mapping[str | int, int] | None = None, validation_per_class: int = 0) -> Dataset:
        test = _rest_of_test(largest // 5, validation_per_class)
        groups = _counted(wanted.classes, counts, largest, validation=validation_per_class, test=test)
        return assemble(read_cifar(wanted, where), groups, name=cifar)

    return Recipe(f"{cifar}, balanced or with the training counts of a dict", build)


def _rest_of_test(held_out: int, validation: int) -> int:
    if whole("validation_per_class", validation) >= held_out:
        raise InputError(
            f"validation_per_class must be below {held_out}, the test images of a class, found {validation}"
        )
    return held_out - validation


def _counted(
    classes: Sequence[str], counts: Mapping[str | int, int] | None, largest: int, *, validation: int, test: int
) -> tuple[Group, ...]:
    """Classes in the order of the dict, named or numbered as in the source; without a dict all of them, balanced."""
    if counts is None:
        return singles(classes, [largest] * len(classes), validation=validation, test=test)
    if not isinstance(counts, Mapping) or len(counts) < 2:
        raise InputError(f"counts must be a dict of at least 2 classes and their counts, found {counts!r}")
    members = [_member(classes, key) for key in counts]
    if len(set(members)) < len(members):
        raise InputError(f"counts must name each class once, found {list(counts)}")
    train = [whole(f"counts[{key!r}]", n, least=1) for key, n in counts.items()]
    return singles(classes, train, validation=validation, test=test, members=members)


def _member(classes: Sequence[str], key: str | int) -> int:
    if key in classes:
        return classes.index(str(key))
    if isinstance(key, int) and 0 <= key < len(classes):
        return key
    raise InputError(
        f"counts must name classes of {', '.join(classes[:10])}{' ...' * (len(classes) > 10)}, found {key!r}"
    )


def _digits_groups(name: str, groups: tuple[Group, ...], summary: str) -> Recipe:
    def build(where: Where) -> Dataset:
        return assemble(read_digits(), groups, name=name)

    return Recipe(summary, build)


def _build_digits(where: Where, *, counts: Mapping[str | int, int] | None = None) -> Dataset:
    groups = _counted(DIGITS, counts, LARGEST, validation=EVALUATED, test=EVALUATED)
    return assemble(read_digits(), groups, name="digits")


def _synthetic(name: str, summary: str, *, largest: int, ratio: float) -> Recipe:
    def build(
        where: Where,
        *,
        classes: int = 2,
        majority: int = largest,
        imbalance: float = ratio,
        dimension: int = 20,
        overlap: float = 0.05,
        noise: float | Sequence[float] = 1.0,
        test_per_class: int = 500,
        seed: int = 0,
    ) -> Dataset:
        number("imbalance (largest class over smallest)", imbalance, least=1)
        step = imbalance ** (-1 / (whole("classes", classes, least=2) - 1))
        counts = geometric(whole("majority", majority, least=1), step, classes)
        return gaussian_classes(
            counts,
            dimension=dimension,
            overlap=overlap,
            noise=noise,
            test_per_class=test_per_class,
            seed=seed,
            name=name,
        )

    return Recipe(summary, build)


RECIPES: dict[str, Recipe] = {
    "bi7a": _of_the_paper("bi7a", "CIFAR-10 truck and automobile, 7:1"),
    "bi7b": _of_the_paper("bi7b", "CIFAR-10 horse and deer, 7:1"),
    "bi60": _of_the_paper("bi60", "CIFAR-10 animals and vehicles, 60:1"),
    "mul10": _of_the_paper("mul10", "CIFAR-10, long-tailed, 100:1"),
    "mul100": _of_the_paper("mul100", "CIFAR-100, long-tailed, 100:1"),
    "cifar10-lt": _long_tailed("cifar10", 5000),
    "cifar100-lt": _long_tailed("cifar100", 500),
    "cifar10": _whole_cifar("cifar10", 5000),
    "cifar100": _whole_cifar("cifar100", 500),
    "digits-bi20": _digits_groups("digits-bi20", DIGITS_BI20, "embedded digits, even and odd, 20:1"),
    "digits-mul10": _digits_groups("digits-mul10", DIGITS_MUL10, "embedded digits, long-tailed, 20:1"),
    "digits": Recipe("embedded digits, balanced or with the training counts of a dict", _build_digits),
    "gaussian": _synthetic("gaussian", "Gaussian classes with known overlap, 10:1", largest=1000, ratio=10),
    "gaussian-bi60": _synthetic("gaussian-bi60", "two Gaussian classes, 60:1", largest=3000, ratio=60),
}


def recipes() -> dict[str, Recipe]:
    """Return every named dataset.

    >>> print(recipes()["bi60"].summary)
    CIFAR-10 animals and vehicles, 60:1
    """
    return dict(RECIPES)

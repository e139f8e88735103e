"""How many training examples each class gets: the usual formulas for imbalance."""

from __future__ import annotations

from collections.abc import Callable


def geometric(largest: int, ratio: float, classes: int) -> tuple[int, ...]:
    """Return ``largest * ratio**i`` for class i, to the nearest whole number (the paper's App. F.2).

    >>> geometric(5000, 3 / 5, 10)
    (5000, 3000, 1800, 1080, 648, 389, 233, 140, 84, 50)
    """
    return tuple(round(largest * ratio**i) for i in range(classes))


def exponential(largest: int, imbalance: float, classes: int) -> tuple[int, ...]:
    """Return the field's long tail: ``largest * imbalance**(-i / (classes - 1))``, rounded down (Cao et al. 2019).

    >>> exponential(5000, 100, 10)
    (5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50)
    """
    return tuple(int(largest * (1 / imbalance) ** (i / (classes - 1))) for i in range(classes))


def step(largest: int, imbalance: float, classes: int) -> tuple[int, ...]:
    """Return the field's step: the first half of the classes keeps ``largest``, the others ``largest / imbalance``.

    >>> step(5000, 100, 10)
    (5000, 5000, 5000, 5000, 5000, 50, 50, 50, 50, 50)
    """
    large = classes // 2
    return (largest,) * large + (int(largest * (1 / imbalance)),) * (classes - large)


PROFILES: dict[str, Callable[[int, float, int], tuple[int, ...]]] = {"exp": exponential, "step": step}

"""At which steps a run is measured.

Every grid is an increasing tuple of steps (updates made) that begins at 0, before the first update, and ends after
the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from classgrad._errors import InputError

POINTS = 50
"""Measuring points of the paper's runs (step 0 not counted)."""


def log_grid(steps: int, points: int = POINTS) -> tuple[int, ...]:
    """Log-spaced whole steps from 1 to ``steps``, and 0; every step where there are no more than ``points``.

    >>> log_grid(100, points=8)
    (0, 1, 2, 4, 7, 14, 27, 52, 100)
    """
    _check("steps", steps, at_least=0)
    _check("points", points, at_least=2)
    return (0, *_rising(steps, min(points, steps)))


def authors_grid(steps: int, points: int = POINTS, first: int = 4) -> tuple[int, ...]:
    """Log-spaced steps as the authors' released code takes them, and 0.

    The first ``first`` points are 1, 2, 3, ... (4 in full-batch runs and in the paper's stochastic ones, 2 in later
    stochastic ones) and points past the end are lost, so a run of fewer steps than points is measured at each of them.
    """
    _check("steps", steps, at_least=0)
    _check("points", points, at_least=2)
    _check("first", first, at_least=1)
    inside = [step for step in _rising(steps, points, first) if step < steps]
    return _closed(inside, steps)


def measuring_grid(grid: str | Iterable[int], steps: int) -> tuple[int, ...]:
    """Make the grid of a run of ``steps`` updates from its name or an explicit list of steps.

    Names are ``log``, ``authors`` and ``all``; ``log:20`` and ``authors:20`` also give the number of points.

    >>> measuring_grid("log:8", 100) == log_grid(100, 8)
    True
    >>> measuring_grid([10, 5], 20)
    (0, 5, 10, 20)
    """
    _check("steps", steps, at_least=0)
    if isinstance(grid, str):
        return _named(grid, steps)
    if not isinstance(grid, Iterable) or isinstance(grid, Mapping):
        raise InputError(f"Parameter `grid` should be a name or a list of steps. Found {grid!r}.")
    listed = list(grid)
    if any(type(step) is not int or not 0 <= step <= steps for step in listed):
        raise InputError(f"Parameter `grid` should list whole steps from 0 to {steps}. Found {listed}.")
    return _closed(sorted(set(listed)), steps)


def _named(name: str, steps: int) -> tuple[int, ...]:
    makers: dict[str, Callable[[int, int], tuple[int, ...]]] = {"log": log_grid, "authors": authors_grid}
    kind, colon, points = name.partition(":")
    if name == "all":
        return tuple(range(steps + 1))
    if kind not in makers or (colon and not points.isdecimal()):
        raise InputError(
            "Parameter `grid` should be log, authors, log:POINTS, authors:POINTS, all or a list of steps. "
            f"Found {name!r}."
        )
    return makers[kind](steps, int(points) if colon else POINTS)


def _rising(steps: int, points: int, first: int = 1) -> list[int]:
    """Round log-spaced points from 1 to ``steps`` and push duplicates up, so that every point is above the last."""
    spaced = np.rint(np.geomspace(1, max(steps, 1), points)).astype(np.int64)
    spaced[:first] = np.arange(1, len(spaced[:first]) + 1)
    rank = np.arange(len(spaced))
    return (np.maximum.accumulate(spaced - rank) + rank).tolist()  # type: ignore[no-any-return]


def _closed(inside: Iterable[int], steps: int) -> tuple[int, ...]:
    return tuple(sorted({0, *inside, steps}))


def _check(name: str, value: int, at_least: int) -> None:
    if type(value) is not int or value < at_least:
        raise InputError(f"Parameter `{name}` should be a whole number of at least {at_least}. Found {value!r}.")

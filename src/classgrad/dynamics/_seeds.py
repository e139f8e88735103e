"""What several seeds of one experiment say together."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from classgrad._errors import InputError
from classgrad.dynamics._json import Record
from classgrad.dynamics._run import Run

ErrorRule = Literal["paper", "max"]


@dataclass(frozen=True)
class Estimate(Record):
    """Mean over ``n`` runs and its standard error (nan for a single one)."""

    mean: float
    error: float
    n: int


@dataclass(frozen=True, eq=False)
class MeanCurve:
    """Mean and standard error over seeds on the steps that all of them measured."""

    steps: NDArray[np.int64]
    mean: NDArray[np.float64]
    error: NDArray[np.float64]
    n: int


@dataclass(frozen=True)
class HittingTime(Record):
    """τ(R*): when recall first reached a threshold.

    Args:
        threshold: R*.
        times: The first measured step at which each run reached it, None where it never did.
        value: Mean over the runs; infinite if any of them never reached it, for their mean has no smaller bound.
        error: Its error by the chosen rule; nan where ``value`` is infinite.
    """

    threshold: float
    times: tuple[int | None, ...]
    value: float
    error: float

    @property
    def reached(self) -> int:
        """How many runs reached the threshold."""
        return sum(time is not None for time in self.times)

    @property
    def median(self) -> float:
        """Median over the runs, a run that never reached the threshold counting as infinite."""
        ordered = sorted(math.inf if time is None else float(time) for time in self.times)
        middle = len(ordered) // 2
        return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def estimate(values: Sequence[float]) -> Estimate:
    """Mean and standard error s/√n, s with n − 1; nan where there are no values.

    >>> estimate([1.0, 3.0])
    Estimate(mean=2.0, error=1.0, n=2)
    """
    if not len(values):
        return Estimate(math.nan, math.nan, 0)
    mean, error = _mean_and_error(np.asarray(values, dtype=np.float64))
    return Estimate(float(mean), float(error), len(values))


def mean_curve(runs: Sequence[Run], read: Callable[[Run], NDArray[np.float64]]) -> MeanCurve:
    """Mean and standard error of a measured curve over seeds, point by point.

    ``read`` takes the curve from a run, its first axis the measuring points: ``lambda run: run.recall("test")``. Only
    steps that every run measured count, so one that broke off early shortens the curve.
    """
    check_seeds(runs)
    common = reduce(np.intersect1d, [run.steps for run in runs])
    if not len(common):
        raise InputError("Parameter `runs` should share measuring points. Found no step that all of them measured.")
    values = np.stack([read(run)[np.isin(run.steps, common)] for run in runs])
    mean, error = _mean_and_error(values)
    return MeanCurve(common, mean, error, len(runs))


def hitting_time(
    runs: Sequence[Run],
    threshold: float,
    read: Callable[[Run], NDArray[np.float64]] = lambda run: run.macro_recall("test"),
    error: ErrorRule = "paper",
) -> HittingTime:
    """Find τ(R*), the first measured step at which a curve (macro test recall) is at least R*, averaged over seeds.

    Its error is the smaller of the standard error and the interval between measurements (the paper's rule, App.
    "Experiments with GD and PCNGD", footnote), or with ``error="max"`` the larger, which also covers what the grid
    could not resolve. The interval is that before τ, averaged over the runs; a single run has no other error.
    """
    check_seeds(runs)
    rules = {"paper": min, "max": max}
    if error not in rules:
        raise InputError(f"Parameter `error` should be one of {', '.join(rules)}. Found {error!r}.")
    places = [_first(read(run) >= threshold) for run in runs]
    times = tuple(None if at is None else int(run.steps[at]) for run, at in zip(runs, places, strict=True))
    found = [(run.steps, at) for run, at in zip(runs, places, strict=True) if at is not None]
    if len(found) < len(runs):
        return HittingTime(threshold, times, math.inf, math.nan)
    value = estimate([float(steps[at]) for steps, at in found])
    interval = float(np.mean([steps[at] - steps[max(at - 1, 0)] for steps, at in found]))
    return HittingTime(threshold, times, value.mean, rules[error](value.error, interval) if len(runs) > 1 else interval)


def peak(run: Run, split: str = "test", select: str | None = None) -> int:
    """Index of the measuring point with the highest macro recall of a split, the first one if several share it.

    The paper reports the peak of the test recall itself; ``select="validation"`` takes the point the validation set
    would choose.
    """
    curve = run.macro_recall(select or split)
    if np.isnan(curve).all():
        raise InputError(f"Parameter `split` should be one with examples. Found none in {select or split!r}.")
    return int(np.nanargmax(curve))


def check_seeds(runs: Sequence[Run]) -> None:
    """Refuse runs that are no seeds of one experiment: other settings, or one seed twice."""
    if not runs:
        raise InputError("Parameter `runs` should hold at least one run. Found none.")
    for run in runs[1:]:
        for key, value in runs[0].settings.items():
            if run.settings[key] != value:
                raise InputError(
                    f"Parameter `runs` should be seeds of one experiment. Found {key!r} both {value!r} and "
                    f"{run.settings[key]!r}."
                )
    seeds = [run.meta["seed"] for run in runs if run.meta.get("seed") is not None]
    twice = sorted({seed for seed in seeds if seeds.count(seed) > 1})
    if twice:
        raise InputError(f"Parameter `runs` should hold each seed once. Found seed {twice[0]} more than once.")


def _mean_and_error(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    mean: NDArray[np.float64] = values.mean(axis=0)
    if len(values) == 1:
        return mean, np.full_like(mean, np.nan)
    return mean, values.std(axis=0, ddof=1) / math.sqrt(len(values))


def _first(mask: NDArray[np.bool_]) -> int | None:
    return int(mask.argmax()) if mask.any() else None

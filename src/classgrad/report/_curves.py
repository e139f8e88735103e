"""Which curves are drawn, and their values: mean over seeds with a band, one line per class or per group of classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from classgrad.dynamics import MeanCurve, Run, mean_curve
from classgrad.report._experiments import Experiment, Problem

MANY = 12
"""Up to how many classes each gets a line of its own."""

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Quantity:
    """Something measured of every class along a run.

    Args:
        name: Short name, for files and elements.
        title: What it is.
        axis: Title of its axis, with the unit.
        scale: How its axis is divided.
        explanation: What it means, for someone who has not read the paper.
        series: The series it is read from; ``{split}`` stands for the split.
        read: Reads it from a run and a split, shape (points, classes).
        limits: Ends of its axis where it is linear, and ``ticks`` its divisions.
        level: A value worth a line of its own.
        mapped: Whether it is also drawn as a map of classes and steps where there are many classes.
    """

    name: str
    title: str
    axis: str
    scale: Literal["linear", "log"]
    explanation: str
    series: str
    read: Callable[[Run, str], Values]
    limits: tuple[float, float] = (0, 1)
    ticks: float = 1
    level: float | None = None
    mapped: bool = False

    @property
    def by_split(self) -> bool:
        """Whether it is measured on every split, rather than on the training set alone."""
        return "{split}" in self.series


QUANTITIES = (
    Quantity(
        name="recall",
        title="Recall of every class",
        axis="recall [%]",
        scale="linear",
        explanation="Share of a class's examples that are recognized.",
        series="{split}/confusion",
        read=lambda run, split: 100 * run.recall(split),
        limits=(0, 100),
        ticks=20,
        mapped=True,
    ),
    Quantity(
        name="loss",
        title="Loss of every class",
        axis="mean cross-entropy [nats]",
        scale="log",
        explanation="Mean loss of a class's examples; a class that gets worse before it gets better rises first.",
        series="{split}/loss",
        read=lambda run, split: run.loss(split),
    ),
    Quantity(
        name="norm",
        title="Class-gradient norms",
        axis="norm ‖g‖",
        scale="log",
        explanation="How hard each class pulls on the parameters: the length of its part of the training gradient. "
        "Many examples pull harder than few.",
        series="gram",
        read=lambda run, _: run.norms,
    ),
    Quantity(
        name="ratio",
        title="How much stronger the others pull, Cₜ",
        axis="Cₜ (ratio of norms)",
        scale="log",
        explanation="Length of all the other classes' gradients together over the class's own. Above 1 the others "
        "outweigh it.",
        series="gram",
        read=lambda run, _: run.imbalance_ratio,
        level=1.0,
    ),
    Quantity(
        name="angle",
        title="Angle to the others",
        axis="angle α [degrees]",
        scale="linear",
        explanation="Angle between a class's gradient and the sum of the others (of two classes, the same for both). "
        "Above 90° they push against it; with a large Cₜ as well, a step of plain gradient descent makes the class "
        "worse: 1 + Cₜ cos α < 0.",
        series="gram",
        read=lambda run, _: np.degrees(np.arccos(run.cos_alpha)),
        limits=(0, 180),
        ticks=45,
        level=90.0,
    ),
)
"""What is drawn of every class."""


OVERVIEW: dict[str, Callable[[Run, str], Values]] = {
    "macro": lambda run, split: 100 * run.macro_recall(split),
    "minority": lambda run, split: 100 * run.minority_recall(split),
}
"""What is drawn of every algorithm, in per cent, on the axis of recall."""


@dataclass(frozen=True)
class Line:
    """One line of a plot: a class, or a group of classes of similar size; ``detail`` tells its training examples."""

    name: str
    detail: str
    classes: NDArray[np.int64]

    @property
    def label(self) -> str:
        """Name and detail."""
        return f"{self.name} ({self.detail})"


@dataclass(frozen=True)
class Curves:
    """Lines of one quantity: middle and band, shape (lines, points); the band is nan where there is none.

    ``grouped`` tells whether a line stands for several classes, and its band for their spread.
    """

    steps: NDArray[np.int64]
    mean: Values
    low: Values
    high: Values
    grouped: bool = False


def lines_of(problem: Problem) -> list[Line]:
    """One line per class from majority to minority; three groups of classes where there are more than :data:`MANY`."""
    order, counts, names = problem.order, problem.counts, problem.runs[0].classes
    if len(order) <= MANY:
        return [Line(names[k], f"n = {counts[k]:,}", np.array([k])) for k in order]
    parts = zip(("largest", "middle", "smallest"), np.array_split(order, 3), strict=True)
    return [Line(f"{len(k)} {size} classes", f"n = {counts[k[-1]]:,} to {counts[k[0]]:,}", k) for size, k in parts]


def curves_of(experiment: Experiment, quantity: Quantity, split: str, lines: Sequence[Line]) -> Curves | None:
    """Average a quantity over the seeds; None where it was not measured.

    The band of a class is its standard error over seeds. The line of a group is the mean of its classes (the median on
    a logarithmic axis), its band holds four fifths of them (10th to 90th percentile of their means over seeds).
    """
    curve = _averaged(experiment, quantity, split)
    if curve is None:
        return None
    if all(len(line.classes) == 1 for line in lines):
        chosen = np.concatenate([line.classes for line in lines])
        mean, error = curve.mean.T[chosen], curve.error.T[chosen]
        return Curves(curve.steps, mean, mean - error, mean + error)
    grouped = [_group(curve.mean[:, line.classes], quantity.scale) for line in lines]
    middle, low, high = (np.stack(parts) for parts in zip(*grouped, strict=True))
    return Curves(curve.steps, middle, low, high, grouped=True)


def class_means(experiment: Experiment, quantity: Quantity, split: str, order: NDArray[np.int64]) -> Curves | None:
    """Average a quantity over the seeds for a map of all classes in the order given; no band."""
    curve = _averaged(experiment, quantity, split)
    if curve is None:
        return None
    mean = curve.mean.T[order]
    return Curves(curve.steps, mean, np.full_like(mean, np.nan), np.full_like(mean, np.nan))


def overview_of(experiment: Experiment, name: str, split: str) -> Curves | None:
    """Average a quantity of :data:`OVERVIEW` over the seeds, as a single line."""
    if split not in experiment.splits:
        return None
    curve = mean_curve(experiment.averaged, lambda run: OVERVIEW[name](run, split))
    mean, error = curve.mean[np.newaxis], curve.error[np.newaxis]
    return Curves(curve.steps, mean, mean - error, mean + error)


def _averaged(experiment: Experiment, quantity: Quantity, split: str) -> MeanCurve | None:
    if not experiment.measured(quantity.series.format(split=split)):
        return None
    with np.errstate(invalid="ignore", over="ignore"):  # infinite values, as a vanished gradient's ratio, have no mean
        return mean_curve(experiment.averaged, lambda run: quantity.read(run, split))


def step_ticks(last: int) -> list[int]:
    """Choose steps to name on an axis that is logarithmic in step + 1, which keeps step 0 on it.

    >>> step_ticks(2500)
    [0, 1, 10, 100, 1000]
    """
    return [0, *(10**power for power in range(len(str(max(last, 1)))))]


def _group(values: Values, scale: str) -> tuple[Values, Values, Values]:
    """Middle, 10th and 90th percentile over the classes that have a value at each point."""
    middle = np.nanmedian if scale == "log" else np.nanmean
    masked = np.where(np.isfinite(values), values, np.nan)
    empty = np.isnan(masked).all(axis=1)
    masked[empty] = 0.0
    low, high = np.nanpercentile(masked, (10, 90), axis=1)
    parts = middle(masked, axis=1), low, high
    for part in parts:
        part[empty] = np.nan
    return parts

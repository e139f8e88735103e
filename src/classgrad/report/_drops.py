"""Where the minority initial drop lies on the curves that are drawn, and what to say about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from classgrad.dynamics import Drop, Mid, Run, detect_mid, find_drop, learned_step, mean_curve, told_by
from classgrad.report._experiments import Experiment
from classgrad.report._results import percentage

WORTH_A_MARK = 0.5
"""The share of its reference level that a class must lose in the mean over seeds for its lowest point to be marked."""

Read = Callable[[Run], NDArray[np.float64]]


@dataclass(frozen=True)
class Span:
    """A minority initial drop as it shows in the mean over seeds.

    Args:
        start: First step below both where the minority began and chance.
        end: First step at which it is back; None if it is not by the end.
        bottom: Step of its lowest point.
        initial: Where the minority began.
        level: How low it fell.
        lowest: Step of the lowest point of every minority class that dropped itself, by class.
    """

    start: int
    end: int | None
    bottom: int
    initial: float
    level: float
    lowest: dict[int, int]


@dataclass(frozen=True)
class DropView:
    """The drop for the eye: a sentence, and where to mark it if there is something to mark."""

    sentence: str
    span: Span | None = None


def view_drop(experiment: Experiment, split: str) -> DropView:
    """Look for the minority initial drop in the runs of an experiment, then for its place in their mean."""
    mids = [detect_mid(run, split) for run in experiment.averaged]
    judged = [mid for mid in mids if mid.basis != "undecided"]
    dropped = [mid for mid in judged if mid.verdict]
    if not judged:
        return DropView("Too few examples to tell whether the minority drops at first.")
    if judged[0].basis == "no minority":
        return DropView("No minority: every class has equally many training examples.")
    if not dropped:
        return DropView("No minority initial drop.")
    told = next(mid for mid in dropped if mid.basis == told_by(dropped))
    span = _in_mean(experiment.averaged, split, told)
    share = f" in {len(dropped)} of {len(judged)} runs" if len(judged) > 1 else ""
    if span is None or 2 * len(dropped) < len(judged):
        return DropView(f"Minority initial drop{share}, too slight or too seldom to show in their mean.")
    return DropView(f"Minority initial drop{share}: {_story(span, told)}", span)


def _in_mean(runs: Sequence[Run], split: str, mid: Mid) -> Span | None:
    macro = mean_curve(runs, lambda run: run.macro_recall(split))
    chance = 1 / len(runs[0].classes)
    learned = learned_step(macro.steps, macro.mean, chance)
    minority = mean_curve(runs, _minority_confidence if mid.basis == "loss" else lambda run: run.minority_recall(split))
    drop = find_drop(macro.steps, minority.mean, chance, learned)
    if drop is None or drop.start is None:
        return None
    recalls = mean_curve(runs, lambda run: run.recall(split)).mean
    lowest = {
        label: _bottom(macro.steps, recalls[:, label], own)
        for label in np.flatnonzero(runs[0].minority).tolist()
        if (own := find_drop(macro.steps, recalls[:, label], chance, learned)) and own.relative_depth >= WORTH_A_MARK
    }
    bottom = _bottom(macro.steps, minority.mean, drop)
    return Span(drop.start, drop.end, bottom, drop.initial, drop.lowest, lowest)


def _minority_confidence(run: Run) -> NDArray[np.float64]:
    """Typical probability of the right class over the minority classes, as :func:`detect_mid` reads the loss."""
    confidence: NDArray[np.float64] = np.exp(-run.loss("train")[:, run.minority].mean(axis=1))
    return confidence


def _bottom(steps: NDArray[np.int64], curve: NDArray[np.float64], drop: Drop) -> int:
    within = (steps >= (drop.start or 0)) & (steps < (np.inf if drop.end is None else drop.end))
    return int(steps[within][np.nanargmin(curve[within])])


def _story(span: Span, mid: Mid) -> str:
    what = {
        "recall": "the mean recall of the minority classes falls",
        "loss": "recall starts too low to tell, but the probability given to the right class falls",
    }[mid.basis]
    back = "has not come back by the end" if span.end is None else f"is back after step {span.end}"
    return f"{what} from {percentage(span.initial)} to {percentage(span.level)} (step {span.bottom}) and {back}."

"""One experiment in a handful of numbers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from classgrad.dynamics._json import Record
from classgrad.dynamics._mid import detect_mid, told_by
from classgrad.dynamics._run import Run
from classgrad.dynamics._seeds import ErrorRule, Estimate, HittingTime, check_seeds, estimate, hitting_time, peak


@dataclass(frozen=True)
class Summary(Record):
    """What the seeds of one experiment reached, how fast, and at what cost to the minority.

    Args:
        settings: What the runs have in common.
        seeds: The seed of each run, in the order of the runs.
        statuses: How many runs ended how.
        split: The split that recalls are of.
        peak: Each run's highest macro recall.
        peak_step: Where that was.
        final: Macro recall at the last measured point.
        minority_at_peak: Mean recall of the minority classes at the peak of macro recall.
        minority_final: The same at the last measured point.
        tau: τ(R*) of macro recall.
        mid_fraction: Share of the runs with a minority initial drop among those that can be judged; nan without any.
        mid_depth: Depth of the drop over those of them that are judged by what most drops are told by; 0 without one.
        mid_relative_depth: The same as a share of the level it fell from: 1 is a fall to zero.
    """

    settings: dict[str, Any]
    seeds: tuple[int | None, ...]
    statuses: dict[str, int]
    split: str
    peak: Estimate
    peak_step: Estimate
    final: Estimate
    minority_at_peak: Estimate
    minority_final: Estimate
    tau: HittingTime
    mid_fraction: float
    mid_depth: Estimate
    mid_relative_depth: Estimate


def default_threshold(num_classes: int) -> float:
    """R* two fifths of the way from chance to 1: the paper's 0.7 for two classes.

    >>> default_threshold(2)
    0.7
    """
    return math.floor(1e12 * (1 / num_classes + 0.4 * (1 - 1 / num_classes)) + 0.01) / 1e12


def summarize(
    runs: Sequence[Run],
    threshold: float | None = None,
    split: str = "test",
    select: str | None = None,
    error: ErrorRule = "paper",
) -> Summary:
    """Summarize the seeds of one experiment.

    ``threshold`` is R* (:func:`default_threshold` if None), ``select`` the split that chooses the peak (``split`` if
    None), ``error`` the error rule of τ.
    """
    check_seeds(runs)
    threshold = default_threshold(len(runs[0].classes)) if threshold is None else threshold
    peaks = [peak(run, split, select) for run in runs]
    at_peak = list(zip(runs, peaks, strict=True))
    mids = [mid for mid in (detect_mid(run, split) for run in runs) if mid.basis != "undecided"]
    depths = [mid for mid in mids if mid.basis == told_by(mids)] or mids
    return Summary(
        settings=runs[0].settings,
        seeds=tuple(run.meta.get("seed") for run in runs),
        statuses=dict(Counter(run.meta.get("status", "finished") for run in runs)),
        split=split,
        peak=estimate([run.macro_recall(split)[at] for run, at in at_peak]),
        peak_step=estimate([run.steps[at] for run, at in at_peak]),
        final=estimate([run.macro_recall(split)[-1] for run in runs]),
        minority_at_peak=estimate([run.minority_recall(split)[at] for run, at in at_peak]),
        minority_final=estimate([run.minority_recall(split)[-1] for run in runs]),
        tau=hitting_time(runs, threshold, lambda run: run.macro_recall(split), error),
        mid_fraction=estimate([mid.verdict for mid in mids]).mean,
        mid_depth=estimate([mid.depth for mid in depths]),
        mid_relative_depth=estimate([mid.relative_depth for mid in depths]),
    )

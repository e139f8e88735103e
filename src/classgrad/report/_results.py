"""The result table: one row per algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from classgrad.dynamics import Run


@dataclass(frozen=True)
class ResultRow:
    """What one algorithm reached on one data set; recalls are fractions, errors are standard errors over seeds.

    A number that could not be had (a single seed's error, a recall never reached) is nan.
    """

    data: str
    """The data set."""
    algorithm: str
    """The algorithm, with the settings that tell it from others of the same name."""
    split: str
    """Where it was measured: test, or validation or train where there is no test set."""
    seeds: int
    """Number of runs."""
    peak_recall: float
    """Highest macro recall along the run."""
    peak_recall_error: float
    target: float
    """R*, the macro recall that τ waits for."""
    tau: float
    """Steps to reach R*."""
    tau_error: float
    reached: int
    """Number of runs that reached R*."""
    minority_recall: float
    """Mean recall of the minority classes at the end."""
    minority_recall_error: float
    mid: int
    """Number of runs with a minority initial drop."""
    mid_depth: float
    """How far the recall of a minority class fell below where it began, in the worst class."""
    notes: tuple[str, ...] = ()
    """What to know before reading the numbers: runs that diverged or were interrupted, a single seed."""


def result_table(runs: Sequence[Run]) -> list[ResultRow]:
    """Summarize runs, the seeds of an experiment together: one row per data set and algorithm, in the order given."""
    raise NotImplementedError

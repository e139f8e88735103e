"""The result table: one row per algorithm, and what it says in plain sentences."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from classgrad.dynamics import Estimate, Run, Summary, summarize
from classgrad.report._experiments import Experiment, Problem, problems
from classgrad.report._notes import notes

NOTHING = "–"
"""What a cell shows where there is no number."""


@dataclass(frozen=True)
class ResultRow:
    """What one algorithm reached on one data set.

    Args:
        data: The data set.
        algorithm: The algorithm, with the settings that tell it from others of the same name.
        summary: Its numbers (recalls are fractions); None where recall was not measured.
        notes: What to know before reading them: runs that diverged, a single seed, ...
    """

    data: str
    algorithm: str
    summary: Summary | None
    notes: tuple[str, ...] = ()

    def cells(self) -> dict[str, str]:
        """Give the row as text under its column titles, for a table."""
        numbers = dict.fromkeys(COLUMNS, NOTHING)
        if self.summary is not None:
            numbers = {title: write(self.summary) for title, write in COLUMNS.items()}
        return {"data": self.data, "algorithm": self.algorithm, **numbers}


def result_table(runs: Sequence[Run]) -> list[ResultRow]:
    """Summarize runs, the seeds of an experiment together: one row per data set and algorithm, in the order given.

    Numbers are those of the test set, or of validation or training data where there is none. Runs that did not finish
    are left out of them, unless none did.
    """
    return [row for problem in problems(runs) for row in rows_of(problem)]


def rows_of(problem: Problem) -> list[ResultRow]:
    """Summarize the experiments of one problem."""
    return [
        ResultRow(problem.label, experiment.label, _summary(experiment), notes(experiment))
        for experiment in problem.experiments
    ]


def _summary(experiment: Experiment) -> Summary | None:
    return None if experiment.split is None else summarize(experiment.averaged, split=experiment.split)


def percentage(share: float, digits: int = 0) -> str:
    """Write a fraction in per cent.

    >>> percentage(0.912)
    '91 %'
    """
    return f"{100 * share:.{digits}f} %"


def points(share: float) -> str:
    """Write a difference of fractions in percentage points.

    >>> points(0.213), points(0.013), points(0.001)
    ('21 points', '1 point', 'under 1 point')
    """
    whole = round(100 * share)
    return "under 1 point" if whole < 1 else f"{whole} point{'s' * (whole > 1)}"


def percent(value: Estimate) -> str:
    """Write a fraction as a percentage with its error.

    >>> percent(Estimate(0.912, 0.0042, 3))
    '91.2 ± 0.4 %'
    """
    if math.isnan(value.mean):
        return NOTHING
    error = "" if math.isnan(value.error) else f" ± {100 * value.error:.1f}"
    return f"{100 * value.mean:.1f}{error} %"


def steps(value: float) -> str:
    """Write a mean number of steps.

    >>> steps(3.5), steps(12.0), steps(1234.5)
    ('3.5', '12', '1,234')
    """
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def _tau(summary: Summary) -> str:
    tau = summary.tau
    if math.isfinite(tau.value):
        return f"{steps(tau.value)} ± {steps(tau.error)}"
    return f"reached by {tau.reached} of {len(tau.times)}" if tau.reached else "not reached"


def _mid(summary: Summary) -> str:
    if math.isnan(summary.mid_fraction):
        return NOTHING
    if summary.mid_fraction == 0:
        return "no"
    share = "yes" if summary.mid_fraction == 1 else f"in {percentage(summary.mid_fraction)} of runs"
    return f"{share}, {points(summary.mid_depth.mean)} ({percentage(summary.mid_relative_depth.mean)})"


COLUMNS: dict[str, Callable[[Summary], str]] = {
    "peak macro recall": lambda summary: percent(summary.peak),
    "R*": lambda summary: percentage(summary.tau.threshold),
    "steps to R*": _tau,
    "minority recall": lambda summary: percent(summary.minority_final),
    "minority initial drop": _mid,
    "seeds": lambda summary: str(len(summary.seeds)),
}
"""The columns of numbers, and how they are written."""

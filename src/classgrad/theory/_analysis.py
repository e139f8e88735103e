"""The theory on a recorded run: which classes were predicted to get worse and did, and how tight the bounds are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from classgrad.dynamics import Run, condition, weighted_gram
from classgrad.theory._conditions import direction_length, largest_step
from classgrad.theory._fixed_points import FixedPoints, fixed_points
from classgrad.theory._gd import gd_alternate_bound, gd_bound
from classgrad.theory._pcngd import pcngd_bound, pcngd_second_bound, r_pcngd_bound
from classgrad.theory._records import Bound, Constant, Constants, Statement, Trajectory

BOUNDS: dict[str, tuple[Callable[..., Bound], ...]] = {
    "gd": (gd_bound, gd_alternate_bound),
    "pcngd": (pcngd_bound, pcngd_second_bound, r_pcngd_bound),
}
"""The bounds that are about an algorithm; the others need constants that a record does not hold."""


@dataclass(frozen=True, eq=False)
class RunAnalysis:
    """What the theory says about a run; tensors have shape (points, classes) unless said."""

    run: Run
    margin: Tensor
    """(K w)_l/(w_l K_ll): 1 + C_t cos α for GD, 1 + C̃_t cos α for PCNGD, and their like for any other weights."""
    predicted: Tensor
    """First-order change of every f^(l) in the step after the point."""
    measured: Tensor
    """Its change as measured; nan where it was not."""
    limit: Tensor
    """Largest step that provably lowers every class's loss, with the estimated L_2; shape (points,)."""
    constants: Constants
    bounds: tuple[Bound, ...]
    """Empty unless every step of a full-batch run with plain steps was recorded."""
    why_no_bounds: str
    end: FixedPoints
    """How far the last point is from a fixed point of GD and of PCNGD."""

    @property
    def predicted_worse(self) -> Tensor:
        """Where a class was predicted to get worse and its change was measured."""
        return (self.predicted > 0) & ~self.measured.isnan()

    @property
    def got_worse(self) -> Tensor:
        """Where a class did get worse."""
        return self.measured > 0


def analyze_run(run: Run, *, statement: Statement = "corrected") -> RunAnalysis:
    """Apply the conditions, the step limit, the bounds and the fixed points to a recorded run.

    The record must hold ``gram``, ``weights``, ``lr`` and ``train/loss``. L_2 is estimated from the run alone, as the
    curvature that explains its measured changes; f_* is taken as 0, below which cross entropy cannot be.
    """
    gram, weights, lr = (torch.from_numpy(run[name]) for name in ("gram", "weights", "lr"))
    predicted = torch.from_numpy(run.predicted_change)
    measured = torch.from_numpy(run["measured_change"]) if "measured_change" in run else _differences(run)
    constants = Constants(
        seen_smoothness(gram, weights, lr, predicted, measured),
        Constant(torch.zeros(gram.shape[-1], dtype=torch.float64), exact=False, how="0, the least cross entropy"),
    )
    why = _why_no_bounds(run)
    bounds = () if why else _bounds(run, constants, statement)
    return RunAnalysis(
        run=run,
        margin=condition(weighted_gram(gram, weights)),
        predicted=predicted,
        measured=measured,
        limit=largest_step(gram, constants.smoothness.value, weights).amin(-1),
        constants=constants,
        bounds=bounds,
        why_no_bounds=why,
        end=fixed_points(gram[-1], torch.from_numpy(run.counts)),
    )


def seen_smoothness(gram: Tensor, weights: Tensor, lr: Tensor, predicted: Tensor, measured: Tensor) -> Constant:
    """Find the smallest L_2 per class with which the descent lemma allows the measured changes.

    max_t 2 (measured - predicted)/(η² ‖d‖²): a lower bound of the true constant, along the steps taken.
    """
    squared = lr.unsqueeze(-1).square() * direction_length(gram, weights)
    seen = (2 * (measured - predicted) / squared).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).clamp(min=0)
    return Constant(seen.amax(0), exact=False, how="curvature that explains the measured changes")


def _differences(run: Run) -> Tensor:
    """Take the changes between consecutive records, where they are one step apart."""
    objectives, steps = torch.from_numpy(run.objectives), torch.from_numpy(run.steps)
    changes = torch.full_like(objectives, torch.nan)
    changes[:-1] = torch.where((steps.diff() == 1).unsqueeze(-1), objectives.diff(dim=0), torch.nan)
    return changes


def _why_no_bounds(run: Run) -> str:
    algorithm = str(run.meta.get("algorithm"))
    steps = run.steps
    if algorithm not in BOUNDS:
        return f"the bounds are for {' and '.join(BOUNDS)}, this run is {algorithm}"
    if len(steps) < 2 or int(steps[-1] - steps[0]) != len(steps) - 1:
        return f"the bounds need every step, {len(steps)} of {int(steps[-1]) + 1} points were recorded"
    return ""


def _bounds(run: Run, constants: Constants, statement: Statement) -> tuple[Bound, ...]:
    path = Trajectory(
        torch.from_numpy(run.objectives), torch.from_numpy(run["gram"][:-1]), torch.from_numpy(run["lr"][:-1])
    )
    return tuple(bound(path, constants, statement=statement) for bound in BOUNDS[run.meta["algorithm"]])

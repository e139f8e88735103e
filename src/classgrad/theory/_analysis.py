"""The theory on a recorded run: which classes were predicted to get worse and did, and how tight the bounds are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from classgrad.dynamics import Run, predicted_change
from classgrad.theory._conditions import (
    RuleName,
    direction_length,
    gd_margin,
    largest_step,
    pcn_margin,
    rule_weights,
)
from classgrad.theory._fixed_points import FixedPoints, fixed_points
from classgrad.theory._gd import gd_alternate_bound, gd_bound
from classgrad.theory._pcngd import pcngd_bound, pcngd_second_bound, r_pcngd_bound
from classgrad.theory._records import Bound, Constant, Constants, Statement, Trajectory

BOUNDS: dict[RuleName, tuple[Callable[..., Bound], ...]] = {
    "gd": (gd_bound, gd_alternate_bound),
    "pcngd": (pcngd_bound, pcngd_second_bound, r_pcngd_bound),
}
"""The bounds for each rule; the others need constants that a record does not hold."""

SAME = 1e-3
"""Relative difference up to which a recorded step counts as -η Σ w_l g_l; single precision stays well below it."""


@dataclass(frozen=True, eq=False)
class RunAnalysis:
    """What the theory says about a run; tensors have shape (points, classes) unless said."""

    run: Run
    margin: Tensor
    """1 + C_t cos α of the full-batch class gradients, 1 + C̃_t cos α for the algorithms that normalize them."""
    predicted: Tensor
    """First-order change of every f^(l) in the step after the point; nan where it was not recorded."""
    measured: Tensor
    """Its change as measured; nan where it was not."""
    limit: Tensor
    """Largest step that provably lowers every class's loss, with the L_2 seen in the run; shape (points,)."""
    constants: Constants
    bounds: tuple[Bound, ...]
    why_no_bounds: str
    """Empty where there are bounds."""
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

    The record must hold ``gram``, ``lr`` and ``train/loss``. L_2 is estimated from the run alone, as the curvature that
    explains its measured changes; f_* is taken as 0, below which no cross entropy is. The bounds need every step of a
    run that made plain full-batch steps, -η Σ w_l g_l; ``why_no_bounds`` says what is missing.
    """
    gram, lr = torch.from_numpy(run["gram"]), torch.from_numpy(run["lr"])
    normalized = any(part in str(run.meta.get("algorithm")) for part in ("pcn", "bisection"))
    rule: RuleName = "pcngd" if normalized else "gd"
    weights = torch.from_numpy(run["weights"]) if "weights" in run else rule_weights(gram, rule)
    first_order = predicted_change(gram, weights, lr)
    predicted = torch.from_numpy(run["predicted_change"]) if "predicted_change" in run else first_order
    measured = torch.from_numpy(run["measured_change"]) if "measured_change" in run else _differences(run)
    plain = _same(predicted, first_order)
    seen = _seen_smoothness(gram, weights, lr, predicted, measured) if plain else torch.full(gram.shape[-1:], torch.nan)
    constants = Constants(
        Constant(seen.double(), exact=False, how="curvature that explains the measured changes"),
        Constant(torch.zeros(gram.shape[-1], dtype=torch.float64), exact=False, how="0, the least cross entropy"),
    )
    why = _why_no_bounds(run, rule, plain and _same(weights, rule_weights(gram, rule).to(weights)))
    return RunAnalysis(
        run=run,
        margin=pcn_margin(gram) if normalized else gd_margin(gram),
        predicted=predicted,
        measured=measured,
        limit=largest_step(gram, constants.smoothness.value, rule).amin(-1),
        constants=constants,
        bounds=() if why else _bounds(run, rule, constants, statement),
        why_no_bounds=why,
        end=fixed_points(gram[-1], torch.from_numpy(run.counts)),
    )


def _seen_smoothness(gram: Tensor, weights: Tensor, lr: Tensor, predicted: Tensor, measured: Tensor) -> Tensor:
    """Find the smallest L_2 per class with which the descent lemma allows the measured changes.

    max_t 2 (measured - predicted)/(η² ‖d‖²): a lower bound of the true constant, along the steps taken.
    """
    squared = lr.unsqueeze(-1).square() * direction_length(gram, weights)
    seen = 2 * (measured - predicted) / squared
    return seen.where(seen.isfinite(), 0.0).clamp(min=0).amax(0)


def _differences(run: Run) -> Tensor:
    """Take the changes between consecutive records, where they are one step apart."""
    objectives, steps = torch.from_numpy(run.objectives), torch.from_numpy(run.steps)
    changes = torch.full_like(objectives, torch.nan)
    changes[:-1] = torch.where((steps.diff() == 1).unsqueeze(-1), objectives.diff(dim=0), torch.nan)
    return changes


def _same(found: Tensor, expected: Tensor) -> bool:
    """Whether the values of all classes agree wherever both are known."""
    known = ~(found.isnan() | expected.isnan())
    scale = expected.abs().amax(-1, keepdim=True).expand_as(expected)
    return bool(((found - expected).abs() <= SAME * scale)[known].all())


def _why_no_bounds(run: Run, rule: RuleName, plain: bool) -> str:
    steps = run.steps
    if not plain:
        return f"the bounds are for plain full-batch steps of {rule}, which the steps of this run are not"
    if len(steps) < 2 or int(steps[-1]) != len(steps) - 1:
        return (
            f"the bounds need every step; {len(steps)} of {int(steps[-1]) + 1} points were recorded (grid 'all' does)"
        )
    return ""


def _bounds(run: Run, rule: RuleName, constants: Constants, statement: Statement) -> tuple[Bound, ...]:
    path = Trajectory(
        torch.from_numpy(run.objectives), torch.from_numpy(run["gram"][:-1]), torch.from_numpy(run["lr"][:-1])
    )
    return tuple(bound(path, constants, statement=statement) for bound in BOUNDS[rule])

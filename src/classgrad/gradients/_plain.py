"""The step of weights that are known beforehand: one ordinary backward pass that never tells the classes apart."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from classgrad.gradients._combine import Wishes, refuse, weigh_blindly
from classgrad.gradients._joint import all_finite, distinct, gradients_of
from classgrad.gradients._layout import ClassLayout
from classgrad.gradients._step import Step
from classgrad.gradients._stream import Direction
from classgrad.rules import Rule


def weighted_backward(
    losses: Tensor,
    layout: ClassLayout,
    f: Tensor,
    scale: Tensor | float,
    rule: Rule,
    parameters: Sequence[nn.Parameter],
    wishes: Wishes,
    norms: Tensor | None = None,
) -> tuple[Step, Direction]:
    """One ordinary backward pass with each example's loss weighed as its class, by remembered ``norms`` if any.

    A gradient that is not finite leaves no direction for any class.
    """
    step = weigh_blindly(rule, f, layout, f.isfinite(), norms)
    seeds = (step.weights * (scale / layout.examples)).to(losses)[layout.index]
    gradients = gradients_of(losses, parameters, seeds, retain_graph=False)
    direction = distinct({p: g for p, g in zip(parameters, gradients, strict=True) if g is not None})
    finite = all_finite(direction.values())
    if losses.is_cuda or not bool(finite):
        step = weigh_blindly(rule, f, layout, f.isfinite() & finite, norms)
        direction = {p: g.to_dense().where(finite, 0) for p, g in direction.items()}
    refuse(step, wishes)
    return step, direction

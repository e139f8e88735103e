"""The step of weights that are known beforehand: one ordinary backward pass that never tells the classes apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

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
    step = weigh_blindly(rule, f, layout, f * 0 == 0, norms)  # f is finite, else it is NaN times 0
    seeds = (step.weights * (scale / layout.examples)).to(losses)[layout.index]
    gradients = gradients_of(losses, parameters, seeds, retain_graph=False)
    direction = distinct({p: g for p, g in zip(parameters, gradients, strict=True) if g is not None})
    pieces = _pieces(direction, join=losses.is_cuda)
    finite = all_finite(piece for _, piece in pieces)
    if losses.is_cuda or not bool(finite):
        step = replace(step, weights=step.weights.where(finite, 0), finite=step.finite & finite)
        direction = {p: g for piece in pieces for p, g in _parts(*piece, finite)}
    refuse(step, wishes)
    return step, direction


_SMALL = 2**20
"""Elements up to which gradients are put side by side: copying them costs less than an operation of their own."""

Piece = tuple[list[nn.Parameter], Tensor]
"""The gradient of one parameter, or those of several one after the other."""


def _pieces(direction: Direction, join: bool) -> list[Piece]:
    """Return the gradients, with small ones that lie without gaps put together if asked for."""
    alone: list[Piece] = []
    small: dict[object, list[nn.Parameter]] = {}
    for p, gradient in direction.items():
        joins = join and not gradient.is_sparse and 0 < gradient.numel() <= _SMALL and gradient.is_contiguous()
        if joins:
            small.setdefault((gradient.dtype, gradient.device), []).append(p)
        else:
            alone.append(([p], gradient))
    flat = [_flatten_dense_tensors([direction[p] for p in group]) for group in small.values()]  # type: ignore[no-untyped-call]
    return [*alone, *zip(small.values(), flat, strict=True)]


def _parts(members: list[nn.Parameter], piece: Tensor, finite: Tensor) -> Iterable[tuple[nn.Parameter, Tensor]]:
    """Return each member's gradient, zero if not finite."""
    kept = piece.to_dense().where(finite, 0)
    if len(members) == 1:
        return [(members[0], kept.view(members[0].shape))]
    return zip(members, _unflatten_dense_tensors(kept, members), strict=True)  # type: ignore[no-untyped-call]

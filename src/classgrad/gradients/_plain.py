"""The step of weights that are known beforehand: one ordinary backward pass that never tells the classes apart."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from classgrad.gradients._basis import Basis
from classgrad.gradients._combine import class_losses, refuse, weigh_blindly
from classgrad.gradients._layout import ClassLayout
from classgrad.gradients._lazy import LazyNorms
from classgrad.gradients._step import Step, values_of
from classgrad.gradients._stream import Direction
from classgrad.gradients.engines._joint import all_finite, distinct, gradients_of, is_finite, largest
from classgrad.gradients.replays._packed import Values
from classgrad.gradients.replays._replays import MakeUp, Replays
from classgrad.gradients.replays._small import Small
from classgrad.rules import Rule


@dataclass(frozen=True)
class _Weighed:
    """The classes of a batch as they are weighed before its backward pass."""

    step: Step
    seeds: Tensor
    """What each example's loss counts."""
    extents: Tensor | None
    """By which norms are remembered, if they are."""
    replays: bool
    """Whether such a step may be replayed, and so is never waited for."""
    make_up: MakeUp | None = None
    """What steps on such batches replay, if any came before."""
    recording: Small | None = None
    """What was replayed to weigh them, if anything was."""


class PlainSteps:
    """Makes such steps. On a GPU what they launch before the backward pass is replayed, and after it too."""

    def __init__(self, replays: Replays) -> None:
        self._replays = replays

    def step(
        self, losses: Tensor, layout: ClassLayout, basis: Basis, scale: Tensor | float, norms: LazyNorms | None = None
    ) -> tuple[Step, Direction]:
        """Make one backward pass with each example's loss weighed as its class, by remembered ``norms`` if any.

        A gradient that is not finite leaves no direction for any class.
        """
        weighed = self._weigh(losses, layout, basis, scale, norms)
        parameters = basis.parameters
        gradients = gradients_of(losses, parameters, weighed.seeds, retain_graph=False)
        direction = distinct({p: g for p, g in zip(parameters, gradients, strict=True) if g is not None})
        pieces = _pieces(direction, join=losses.is_cuda or weighed.replays)
        if weighed.replays:
            top = largest([piece for _, piece in pieces], like=losses)
            step, finite = self._finish(weighed, layout, top, norms)
        else:
            finite = all_finite(piece for _, piece in pieces)
            step = _finish(weighed, finite, norms)
        if weighed.replays or losses.is_cuda or not bool(finite):
            direction = {p: g for piece in pieces for p, g in _parts(*piece, finite)}
        refuse(step, basis.wishes)
        return step, direction

    def _weigh(
        self, losses: Tensor, layout: ClassLayout, basis: Basis, scale: Tensor | float, norms: LazyNorms | None
    ) -> _Weighed:
        rule = basis.rule

        def work(layout: ClassLayout, losses: Tensor) -> Values:
            return _weigh(losses, layout, scale, rule, norms)

        if not self._replays.suit(losses, layout, rule, basis.wishes, scale):
            values = work(layout, losses)
            return _Weighed(_step(values), values["seeds"], values.get("extents"), replays=False)
        make_up = self._replays.make_up(losses, layout, basis.engines.memory())
        key = ("weigh", repr(rule), scale, None if norms is None else norms.source)
        values, recording = self._replays.small(make_up, key, work, layout, [losses.detach()])
        seeds, extents = values["seeds"], values.get("extents")
        if recording is not None:
            seeds = seeds.clone()  # hooks may see them in the backward pass, and keep them
        return _Weighed(_step(values), seeds, extents, True, make_up, recording)

    def _finish(
        self, weighed: _Weighed, layout: ClassLayout, top: Tensor, norms: LazyNorms | None
    ) -> tuple[Step, Tensor]:
        """Do what is left to do when the gradient's largest element is known; say whether that is finite, too."""

        def work(_: ClassLayout, top: Tensor) -> Values:
            finite = is_finite(top)
            return {**values_of(_finish(weighed, finite, norms)), "whole": finite[None]}

        before = weighed.recording
        if before is None:
            values, _ = self._replays.small(None, None, work, layout, [top])
        else:  # what it made lies where a recording can read it
            values, recording = self._replays.small(weighed.make_up, before.number, work, layout, [top])
            if recording is None:
                values = {name: value.clone() for name, value in values.items()}
            else:
                values = recording.made.copies()
        return _step(values), values["whole"][0]


def _weigh(losses: Tensor, layout: ClassLayout, scale: Tensor | float, rule: Rule, norms: LazyNorms | None) -> Values:
    f = class_losses(losses, layout)
    extents = None if norms is None else norms.extents(losses, layout)
    remembered = None if norms is None or extents is None else norms.norms(extents)
    step = weigh_blindly(rule, f, layout, is_finite(f), remembered)
    seeds = (step.weights * (scale / layout.examples)).to(losses)[layout.index]
    return {**values_of(step), "seeds": seeds, **({} if extents is None else {"extents": extents})}


def _finish(weighed: _Weighed, finite: Tensor, norms: LazyNorms | None) -> Step:
    """Return the step of a gradient that is ``finite``, and have norms remember what it saw."""
    step = weighed.step
    if finite.is_cuda or weighed.replays or not bool(finite):
        step = replace(step, weights=step.weights.where(finite, 0), finite=step.finite & finite)
    if norms is not None and weighed.extents is not None:
        norms.keep(step, weighed.extents)
    return step


def _step(values: Values) -> Step:
    return Step(**{name: value for name, value in values.items() if name in Step.__dataclass_fields__})


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

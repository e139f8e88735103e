"""One step over several batches: their class sums are added up and weighed once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from classgrad._errors import InputError
from classgrad.gradients._accumulate import Accumulator
from classgrad.gradients._basis import Basis
from classgrad.gradients._checks import check_labels
from classgrad.gradients._combine import combine, handed_out, scope_of
from classgrad.gradients._layout import ClassLayout
from classgrad.gradients._select import class_parts, examples_of, select
from classgrad.gradients._step import Step
from classgrad.gradients._stream import ClassStream
from classgrad.gradients._write import scale_of, write
from classgrad.gradients.engines._joint import gradients_of

LossFunction = Callable[[Any, Tensor], Tensor]


class MicroBatches:
    """The micro-batches since the last step."""

    def __init__(self, basis: Basis) -> None:
        self._basis = basis
        self._pending: Accumulator | ClassStream | None = None
        self._scaler: GradScaler | None = None

    def add(self, losses: Tensor, y: Tensor, scaler: GradScaler | None, total: int | None) -> None:
        """Do what :meth:`ClassGradients.accumulate` promises."""
        basis = self._basis
        layout = basis.enter(losses, y)
        if not layout.examples:
            if basis.group is not None:  # this process has nothing to add but takes part
                self._begin(total)
            return
        scale = scale_of(scaler, losses)
        pending = self._begin(total)
        self._scaler = scaler
        try:
            with basis.graph(losses) as graph:
                if isinstance(pending, Accumulator):
                    basis.add(pending, losses, layout, graph, scale)
                else:
                    label = _only_class(layout)
                    seeds = torch.ones_like(losses) * (scale / pending.total)
                    gradients = gradients_of(losses, basis.parameters, seeds, retain_graph=False)
                    pending.add(label, losses, gradients, scale)
        except BaseException:
            self._pending = None  # what is there is not a sum of whole micro-batches
            raise

    def finish(self, scaler: GradScaler | None) -> Step:
        """Make the step of all of them."""
        basis = self._basis
        pending, self._pending = self._pending, None
        if pending is None:
            raise InputError("finalize() should follow at least one accumulate() with examples. Found none.")
        scaler = self._scaler if scaler is None else scaler
        with torch.no_grad():
            if isinstance(pending, ClassStream):
                step, direction = pending.finish()
            else:
                basis.reduce(pending)
                terms, losses, layout = pending.finish()
                step, found = combine(
                    terms,
                    scope_of(basis.parameters, basis.model, basis.rule),
                    basis.rule,
                    losses,
                    layout,
                    basis.wishes,
                    factor=max(1, layout.examples),
                    reference=basis.reference,
                )
                direction = handed_out(found)
            return write(step, direction, basis.sparse, scaler, scale_of(scaler, step.losses))

    def by_class(self, loss_fn: LossFunction, x: Any, y: Tensor, chunk: int | None, scaler: GradScaler | None) -> Step:
        """Make the step of a batch of its own, class by class and at most ``chunk`` examples at a time."""
        basis = self._basis
        y = check_labels(y, examples_of(x), y.device if isinstance(y, Tensor) else torch.device("cpu"))
        layout = basis.layout_of(y)
        if not layout.examples and basis.group is None:
            return basis.nothing(torch.zeros(0, device=y.device), layout)
        streams = basis.rule.separable and not basis.wishes.gram and basis.group is None
        total = layout.examples if streams else None
        outer, self._pending = self._pending, None
        try:
            self._begin(total)  # even if there is no part to come: other processes may have some
            for part in class_parts(y, layout, chunk):
                self.add(loss_fn(select(x, part), y[part]), y[part], scaler, total)
            return self.finish(scaler)
        finally:
            self._pending = outer

    def _begin(self, total: int | None) -> Accumulator | ClassStream:
        """Return the sums that the micro-batches of this step go to."""
        basis = self._basis
        if total is not None and basis.group is not None:
            raise InputError("Parameter `total` should not be given with `group`: class sums are kept for all classes.")
        if self._pending is None:
            self._pending = Accumulator(basis.max_memory) if total is None else basis.stream(total)
        first = self._pending.total if isinstance(self._pending, ClassStream) else None
        if total != first:
            raise InputError(
                f"Parameter `total` should be the same for all micro-batches of a step. Found {first} and {total}."
            )
        return self._pending


def _only_class(layout: ClassLayout) -> int:
    present = [label for label, size in zip(layout.labels, layout.sizes, strict=True) if size]
    if len(present) > 1:
        raise InputError(
            f"Parameter `y` should hold one class per micro-batch when `total` is given. Found {len(present)}."
        )
    return present[0]

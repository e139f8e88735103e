"""The step on one batch: exact, or by remembered norms where that is due."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from classgrad.gradients._basis import Basis
from classgrad.gradients._combine import class_losses, combine, handed_out, scope_of
from classgrad.gradients._layout import ClassLayout
from classgrad.gradients._lazy import LazyNorms
from classgrad.gradients._parameters import own_parameters
from classgrad.gradients._plain import PlainSteps
from classgrad.gradients._step import Step
from classgrad.gradients._stream import Direction
from classgrad.gradients._write import scale_of, write
from classgrad.gradients.engines._fused import Plan
from classgrad.gradients.engines._graph import Graph
from classgrad.gradients.engines._joint import class_passes
from classgrad.gradients.replays._recorder import Tally
from classgrad.gradients.replays._replays import Replays


class SingleStep:
    """Makes the step of :meth:`ClassGradients.backward_laid_out`."""

    def __init__(self, basis: Basis, norms: LazyNorms | None, record: bool) -> None:
        self._basis = basis
        self.norms = norms
        self._replays = Replays(record)
        self._plain = PlainSteps(self._replays)

    def make(self, losses: Tensor, layout: ClassLayout, scaler: GradScaler | None, lazy: bool | None) -> Step:
        """Take the class gradients as far as the rule needs them and write the direction."""
        basis = self._basis
        if not layout.examples:
            return basis.nothing(losses, layout)
        norms, due = self._recall(losses, layout, lazy)
        scale = scale_of(scaler, losses)
        unwritten: Tensor | float = 1.0  # the part of the scale that is not in the direction
        plain = (due or self._blind()) and (losses.is_cuda or bool(losses.isfinite().all()))
        with basis.graph(losses, needed=not (due and plain)) as graph:
            if plain:
                step, direction = self._plain.step(losses, layout, basis, scale, norms)
            else:
                step, direction, unwritten = self._exact(losses, layout, graph, scale)
                if norms is not None:
                    norms.keep(step, norms.extents(losses, layout))
            write(step, direction, basis.sparse, scaler, unwritten)
            if norms is not None and lazy is None:
                norms.note(layout, exact=step.norms is not None)
            return step

    @property
    def tally(self) -> Tally:
        """What was replayed of the steps on a GPU."""
        return self._replays.tally

    def lazy(self, layout: ClassLayout) -> bool:
        """Say whether the next step may go by remembered norms."""
        if self.norms is None:
            return False
        return self.norms.lazy(layout, [p.requires_grad for p in own_parameters(self._basis.model)])

    def made(self, step: Step, layout: ClassLayout) -> None:
        """Count a step that was replayed from a recording."""
        if self.norms is None:
            return
        if self._basis.classes is None:  # recordings of different classes do not know of each other
            self.norms.forget()
        else:
            self.norms.note(layout, exact=step.norms is not None)

    def _recall(self, losses: Tensor, layout: ClassLayout, lazy: bool | None) -> tuple[LazyNorms | None, bool]:
        """Return what remembers norms in this step, if anything does, and whether the step is to go by them."""
        unasked = lazy is None and losses.is_cuda and torch.cuda.is_current_stream_capturing()
        if self.norms is None or unasked:  # whoever records a step without saying which kind replays an exact one
            return None, False
        due = self.lazy(layout) if lazy is None else lazy
        if lazy is None:
            self.norms.begin()
        return self.norms, due

    def _exact(
        self, losses: Tensor, layout: ClassLayout, graph: Graph, scale: Tensor | float
    ) -> tuple[Step, Direction, Tensor | float]:
        """Take the class gradients; return the step, its direction and the part of the scale that is not in it."""
        basis = self._basis
        parameters = basis.parameters
        plan = basis.engines.plan(losses, layout, graph, parameters)
        if self._streams(plan, layout):
            return *self._class_by_class(losses, layout, scale), scale
        if plan is not None and self._replays.suit(losses, layout, basis.rule, basis.wishes, scale):
            return *self._replays.step(losses, layout, plan, parameters, basis.engines.memory(), basis.rule), 1.0
        terms = [basis.engines.terms(losses, layout, plan, parameters, scale / layout.examples, gram=basis.asks_gram)]
        step, found = combine(
            terms.pop(),  # nobody else holds it, so that it is let go as the direction comes
            {} if basis.rule.per == "model" else scope_of(parameters, basis.model, basis.rule),
            basis.rule,
            class_losses(losses, layout),
            layout,
            basis.wishes,
            factor=scale,
            target=scale,
            reference=basis.reference,
        )
        return step, handed_out(found), 1.0

    def _blind(self) -> bool:
        """Whether nothing asks for the classes to be told apart, so that one ordinary backward pass may do."""
        rule, wishes = self._basis.rule, self._basis.wishes
        asked = rule.needs or wishes.norms or wishes.gram
        return not asked and rule.per == "model" and rule.separable

    def _streams(self, plan: Plan | None, layout: ClassLayout) -> bool:
        """Whether the classes should be taken one by one: they may, and nothing shorter is possible."""
        basis = self._basis
        if not basis.rule.separable or basis.wishes.gram:
            return False
        return plan is None or len(layout) * plan.held > basis.max_memory

    def _class_by_class(self, losses: Tensor, layout: ClassLayout, scale: Tensor | float) -> tuple[Step, Direction]:
        stream = self._basis.stream(layout.examples)
        passes = class_passes(losses, layout, list(stream.scopes), scale / layout.examples, keep_graph=False)
        for position, (label, gradients) in enumerate(zip(layout.classes.tolist(), passes, strict=True)):
            stream.add(label, losses[layout.index == position], gradients, scale)
        return stream.finish()

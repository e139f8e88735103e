"""The public object: class gradients of a model, in place of ``losses.mean().backward()``."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.distributed import ProcessGroup

from classgrad._errors import InputError
from classgrad.gradients import layers as layers  # enters the layer rules
from classgrad.gradients._accumulate import Accumulator
from classgrad.gradients._checks import check_choice, check_group, check_labels, check_losses, check_settings
from classgrad.gradients._combine import (
    Reference,
    Wishes,
    class_losses,
    combine,
    refuse,
    scope_of,
)
from classgrad.gradients._engines import Engine, Engines, Plan
from classgrad.gradients._graph import NO_GRAPH, Graph, read_graph
from classgrad.gradients._joint import class_passes, gradients_of, joint_terms
from classgrad.gradients._layout import ClassLayout, Layouts, declared_classes
from classgrad.gradients._lazy import lazy_norms
from classgrad.gradients._parameters import own_parameters
from classgrad.gradients._plain import weighted_backward
from classgrad.gradients._select import class_parts, examples_of, holds, select
from classgrad.gradients._step import Step
from classgrad.gradients._stream import ClassStream, Direction
from classgrad.gradients._table import GradientTable, Verification, relative_errors
from classgrad.gradients._terms import Memory
from classgrad.gradients._write import scale_of, sparse_parameters, write
from classgrad.rules import Normalize, Rule

LossFunction = Callable[[Any, Tensor], Tensor]
Outcome = Literal["skip", "error"]


class ClassGradients:
    """Class gradients of ``model`` and the step a ``rule`` makes of them.

    >>> import torch
    >>> from torch.nn import functional as F
    >>> model = torch.nn.Linear(3, 2)
    >>> x, y = torch.randn(8, 3), torch.tensor([0, 0, 0, 0, 0, 0, 0, 1])
    >>> grads = ClassGradients(model)
    >>> losses = F.cross_entropy(model(x), y, reduction="none")  # one loss per example
    >>> step = grads.backward(losses, y)                         # in place of losses.mean().backward()
    >>> step.counts
    tensor([7, 1])

    :param rule: how the classes are weighed; :class:`~classgrad.rules.Normalize` (PCN) by default.
    :param engine: ``"fused"`` takes one backward pass, ``"joint"`` one per class, ``"split"`` one forward and backward
        per class (then use :meth:`backward_through`). ``"auto"`` is ``"fused"``. Where layers mix the examples of a
        batch, as BatchNorm does in training, the fused engine falls back to joint with one warning.
    :param classes: the classes there are, as a number or as labels; by default those present in each batch.
    :param gram: also work out the Gram matrix of the class gradients.
    :param norms: also work out the class norms where the rule does not need them.
    :param max_memory: bytes that class gradients may take at a time; beyond it norms are found without them.
    :param mixing: further layer types that mix examples.
    :param on_missing: a declared class without examples is left out (``"skip"``) or raises (``"error"``).
    :param on_nonfinite: likewise for a class whose loss or gradient is inf or NaN.
    :param group: the torch.distributed group whose processes share the batch, in place of DistributedDataParallel: the
        class sums are added up over it and normalized once, so every process steps as one with the whole batch would.
    """

    def __init__(
        self,
        model: nn.Module,
        rule: Rule | None = None,
        *,
        engine: Engine = "auto",
        classes: int | Sequence[int] | Tensor | None = None,
        gram: bool = False,
        norms: bool = False,
        max_memory: int = 2 * 2**30,
        mixing: Sequence[type[nn.Module]] = (),
        on_missing: Outcome = "skip",
        on_nonfinite: Outcome = "skip",
        group: ProcessGroup | None = None,
    ) -> None:
        choices = {"engine": Engine, "on_missing": Outcome, "on_nonfinite": Outcome}
        for name, value in (("engine", engine), ("on_missing", on_missing), ("on_nonfinite", on_nonfinite)):
            check_choice(name, value, get_args(choices[name]))
        check_settings(model, rule, max_memory, mixing)
        check_group(model, group, classes)
        self.model = model
        self.rule = rule or Normalize()
        self.engine = engine
        self.classes = declared_classes(classes)
        self._layouts = Layouts(self.classes)
        self._wishes = Wishes(norms, gram, on_missing, on_nonfinite)
        self._max_memory = max_memory
        self._engines = Engines(model, engine, max_memory, mixing)
        self._group = group
        self._lazy = None if norms or gram or group or engine == "split" else lazy_norms(self.rule)
        self._pending: Accumulator | ClassStream | None = None
        self._scaler: GradScaler | None = None
        self._reference: Reference | None = None
        self._sparse = sparse_parameters(model)
        self._forms: dict[int, list[tuple[int, int]]] = {}
        weakref.finalize(self, self._engines.abandon)

    def __enter__(self) -> ClassGradients:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove the hooks from the model, as dropping the object does too; it is of no use afterwards."""
        self._engines.close()

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters that take part now: those that require gradients."""
        return [p for p in own_parameters(self.model) if p.requires_grad]

    def backward(self, losses: Tensor, y: Tensor, *, scaler: GradScaler | None = None) -> Step:
        """Add the direction Σ_l w_l g_l to ``p.grad``, as ``losses.mean().backward()`` adds the plain gradient.

        :param losses: one loss per example (``reduction="none"``), shape (N,).
        :param y: the class of each example, or any other grouping of them, shape (N,).
        :param scaler: the GradScaler of mixed precision; then step with ``scaler.step(optimizer)``. The direction is
            written times its scale, and an inf in a class gradient makes it skip the step.

        Under a rule with ``refresh=k`` one step in k is exact and the others weigh the classes by its norms, in one
        plain backward pass that does not tell them apart. The next step is exact too after one in which the mean loss
        of a class had moved by more than the rule's ``drift`` since the last exact one, or that was not finite or
        failed; and where a class of this batch has no norm from the last exact step, its number of examples changed by
        more than ``drift``, or other parameters are trained. With ``gram`` or ``norms`` asked for, with ``group`` or
        engine ``split``, in chunks and over micro-batches every step is exact and nothing is remembered.
        """
        if self.engine == "split":
            raise InputError("Engine 'split' runs the forward itself; use backward_through(loss_fn, x, y).")
        if self._group is not None:
            self.accumulate(losses, y, scaler=scaler)
            return self.finalize(scaler=scaler)
        return self.backward_laid_out(losses, self._enter(losses, y), scaler)

    def backward_laid_out(
        self, losses: Tensor, layout: ClassLayout, scaler: GradScaler | None = None, *, lazy: bool | None = None
    ) -> Step:
        """Do what :meth:`backward` does for labels that are laid out already; on a GPU this never waits for it.

        ``lazy`` makes a step of that kind, such as :meth:`lazy` found due, and leaves its counting to :meth:`made`:
        for a step that is recorded now and replayed many times. The norms are remembered by the replay itself.
        """
        if not layout.examples:
            return self._nothing(losses, layout)
        extents, norms = self._recall(losses, layout, lazy)
        scale = scale_of(scaler, losses)
        unwritten: Tensor | float = 1.0  # the part of the scale that is not in the direction
        f = class_losses(losses, layout)
        parameters = self.parameters
        plain = self._plain(f, norms)
        with self._graph(losses, needed=norms is None or not plain) as graph:
            plan = None if plain else self._engines.plan(losses, layout, graph, parameters)
            if plain:
                step, direction = weighted_backward(
                    losses, layout, f, scale, self.rule, parameters, self._wishes, norms
                )
            elif self._streams(plan, layout):
                step, direction = self._stream_classes(losses, layout, scale)
                unwritten = scale
            else:
                step, direction = combine(
                    self._engines.terms(
                        losses, layout, plan, parameters, scale / layout.examples, gram=self._asks_gram
                    ),
                    scope_of(parameters, self.model, self.rule),
                    self.rule,
                    f,
                    layout,
                    self._wishes,
                    factor=scale,
                    target=scale,
                    reference=self._reference,
                )
            write(step, direction, self._sparse, scaler, unwritten)
            self._remember(step, layout, extents, lazy)
            return step

    def lazy(self, layout: ClassLayout) -> bool:
        """Say, before its forward even, whether the next step will go by remembered norms if its batch is such."""
        if self._lazy is None:
            return False
        return self._lazy.lazy(layout, [p.requires_grad for p in own_parameters(self.model)])

    def made(self, step: Step, layout: ClassLayout) -> None:
        """Count a step that was replayed from a recording.

        Where classes are not declared the next one will be exact: recordings of different classes do not know of each
        other.
        """
        if self._lazy is None:
            return
        if self.classes is None:
            self._lazy.forget()
        else:
            self._lazy.note(layout, exact=step.norms is not None)

    def state_dict(self) -> dict[str, Any]:
        """Give what is remembered between steps under a rule with ``refresh``, as a tensor and plain values.

        The full-batch class gradients of :meth:`refresh` are not among it.
        """
        return {} if self._lazy is None else self._lazy.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on as the object that :meth:`state_dict` was taken from would have."""
        if self._lazy is not None:
            self._lazy.load_state_dict(state, next(iter(self.model.parameters())).device)

    def accumulate(
        self, losses: Tensor, y: Tensor, *, scaler: GradScaler | None = None, total: int | None = None
    ) -> None:
        """Add a micro-batch to the step that :meth:`finalize` will make of all of them.

        Raw class sums are accumulated and normalized once, so the result is that of the whole batch at once. They take
        one gradient per class. If micro-batches hold one class each and come class by class, give the number of
        examples of the whole step as ``total``: then two gradients are kept, whatever the number of classes.
        """
        layout = self._enter(losses, y)
        if not layout.examples:
            if self._group is not None:  # this process has nothing to add but takes part
                self._begin(total)
            return
        scale = scale_of(scaler, losses)
        pending = self._begin(total)
        self._scaler = scaler
        try:
            with self._graph(losses) as graph:
                if isinstance(pending, Accumulator):
                    self._add(pending, losses, layout, graph, scale)
                else:
                    label = _only_class(layout)
                    seeds = torch.ones_like(losses) * (scale / pending.total)
                    gradients = gradients_of(losses, self.parameters, seeds, retain_graph=False)
                    pending.add(label, losses, gradients, scale)
        except BaseException:
            self._pending = None  # what is there is not a sum of whole micro-batches
            raise

    def finalize(self, *, scaler: GradScaler | None = None) -> Step:
        """Make the step of all micro-batches since the last one, under the scaler they were given."""
        pending, self._pending = self._pending, None
        if pending is None:
            raise InputError("finalize() should follow at least one accumulate() with examples. Found none.")
        scaler = self._scaler if scaler is None else scaler
        with torch.no_grad():
            if isinstance(pending, ClassStream):
                step, direction = pending.finish()
            else:
                self._reduce(pending)
                terms, losses, layout = pending.finish()
                step, direction = combine(
                    terms,
                    scope_of(self.parameters, self.model, self.rule),
                    self.rule,
                    losses,
                    layout,
                    self._wishes,
                    factor=max(1, layout.examples),
                    reference=self._reference,
                )
            return write(step, direction, self._sparse, scaler, scale_of(scaler, step.losses))

    def backward_through(
        self,
        loss_fn: LossFunction,
        x: Any,
        y: Tensor,
        *,
        chunk: int | None = None,
        scaler: GradScaler | None = None,
    ) -> Step:
        """Run the forward too: ``loss_fn(x, y)`` returns one loss per example.

        Engine ``split`` runs it class by class. So does every engine when ``chunk`` is given: at most that many
        examples of one class at a time, which streams a full batch through two gradient buffers. Then ``x`` is a
        tensor, or tuples, lists and dicts of tensors, with the examples in the first dimension.

        The fused engine has the examples brought into class order before the forward, which spares it to do so at every
        layer; random layers such as dropout then draw for them in that order.

        A step that goes by remembered norms (see :meth:`backward`) is cheaper this way: that is known before the
        forward, so the hooks rest.
        """
        if chunk is not None and chunk < 1:
            raise InputError(f"Parameter `chunk` should be at least 1. Found {chunk!r}.")
        if self.engine != "split" and chunk is None:
            return self._through(loss_fn, x, y, scaler)
        y = check_labels(y, examples_of(x), y.device if isinstance(y, Tensor) else torch.device("cpu"))
        layout = self._layouts(y)
        if not layout.examples and self._group is None:
            return self._nothing(torch.zeros(0, device=y.device), layout)
        streams = self.rule.separable and not self._wishes.gram and self._group is None
        total = layout.examples if streams else None
        outer, self._pending = self._pending, None
        try:
            self._begin(total)  # even if there is no part to come: other processes may have some
            for part in class_parts(y, layout, chunk):
                self.accumulate(loss_fn(select(x, part), y[part]), y[part], scaler=scaler, total=total)
            return self.finalize(scaler=scaler)
        finally:
            self._pending = outer

    def gradients(self, losses: Tensor, y: Tensor | ClassLayout) -> GradientTable:
        """Return the class gradients themselves; ``p.grad`` is left alone."""
        layout = self._enter(losses, y)
        needed = len(layout) * sum(p.numel() * p.element_size() for p in self.parameters)
        if needed > self._max_memory:
            raise InputError(
                f"Parameter `max_memory` should allow for the {needed} bytes of {len(layout)} class gradients. "
                f"Found {self._max_memory}."
            )
        with self._graph(losses) as graph:
            plan = self._engines.plan(losses, layout, graph, self.parameters)
            terms = self._engines.terms(losses, layout, plan, self.parameters, 1 / max(1, layout.examples))
            named = {
                name: terms[p].dense(0, len(layout)) if p in terms else p.new_zeros(len(layout), *p.shape)
                for name, p in self.model.named_parameters()
                if p.requires_grad
            }
        return GradientTable(layout.classes, layout.counts, class_losses(losses, layout), named)

    def refresh(self, loss_fn: LossFunction, batches: Iterable[tuple[Any, Tensor]]) -> None:
        """Take the class gradients over all ``batches`` as the full-batch ones that ``Rescale`` projects on.

        ``loss_fn(x, y)`` returns one loss per example of a batch. They stay in use until the next call.
        """
        sums = Accumulator(self._max_memory)
        for x, y in batches:
            self._add_batch(sums, loss_fn(x, y), y)
        with torch.no_grad():
            self._reduce(sums)
            self._reference = sums.units()

    def verify(self, losses_fn: LossFunction, batch: tuple[Any, Tensor]) -> Verification:
        """Compare the engine in use with one backward pass per class, on ``batch`` = (x, y).

        Class gradients, their norms and their sum are compared, each made the way a step would make it.
        """
        x, y = batch
        losses = losses_fn(x, y)
        layout = self._enter(losses, y)
        names = {p: name for name, p in self.model.named_parameters()}
        with self._graph(losses) as graph:
            plan = self._engines.plan(losses, layout, graph, self.parameters)
            expected = joint_terms(losses, layout, self.parameters, 1.0, Memory(self._max_memory), keep_graph=True)
            if self.engine != "split":
                found = self._engines.terms(losses, layout, plan, self.parameters, 1.0)
                return Verification("joint" if plan is None else "fused", relative_errors(found, expected, names))
        sums = Accumulator(self._max_memory)
        for part in class_parts(y, layout, None):
            self._add_batch(sums, losses_fn(select(x, part), y[part]), y[part])
        with torch.no_grad():
            return Verification("split", relative_errors(sums.finish()[0], expected, names))

    # ------------------------------------------------------------------------------------------------------------

    def _enter(self, losses: Tensor, y: Tensor | ClassLayout) -> ClassLayout:
        if isinstance(y, ClassLayout):  # laid out already
            check_losses(losses)
            return y
        return self._layouts(self._check(losses, y))

    def _check(self, losses: Tensor, y: Tensor) -> Tensor:
        if self._engines.closed:
            raise InputError("This ClassGradients was closed; make a new one.")
        check_losses(losses)
        return check_labels(y, len(losses), losses.device)

    def _through(self, loss_fn: LossFunction, x: Any, y: Tensor, scaler: GradScaler | None) -> Step:
        if self._group is not None or not isinstance(y, Tensor):
            return self.backward(loss_fn(x, y), y, scaler=scaler)
        layout = self._layouts(check_labels(y, len(y), y.device))
        if layout.order is not None and self._engines.fused and holds(x, layout.examples):
            x, y = select(x, layout.order), layout.group(y)
            layout = layout.grouped()
        with self._engines.resting(self.lazy(layout)):
            losses = loss_fn(x, y)
        self._check(losses, y)
        return self.backward_laid_out(losses, layout, scaler)

    @contextmanager
    def _graph(self, losses: Tensor, needed: bool = True) -> Iterator[Graph]:
        """Read the graph of a step; no gradients and no autocast while it is worked on, and no trace of it after."""
        with torch.no_grad(), torch.autocast(losses.device.type, enabled=False):
            graph = read_graph(losses, self._forms) if needed or self._engines.holding else NO_GRAPH
            try:
                yield graph
            finally:
                self._engines.release(graph)

    def _recall(self, losses: Tensor, layout: ClassLayout, lazy: bool | None) -> tuple[Tensor | None, Tensor | None]:
        """Return what norms are remembered by, and those that a step is to go by, None if it is to take its own."""
        unasked = lazy is None and losses.is_cuda and torch.cuda.is_current_stream_capturing()
        if self._lazy is None or unasked:  # whoever records a step without saying which kind replays an exact one
            return None, None
        due = self.lazy(layout) if lazy is None else lazy
        if lazy is None:
            self._lazy.begin()
        extents = self._lazy.extents(losses, layout)
        return extents, self._lazy.norms(extents) if due else None

    def _remember(self, step: Step, layout: ClassLayout, extents: Tensor | None, lazy: bool | None) -> None:
        if self._lazy is not None and extents is not None:
            self._lazy.keep(step, extents)
            if lazy is None:
                self._lazy.note(layout, exact=step.norms is not None)

    def _begin(self, total: int | None) -> Accumulator | ClassStream:
        """Return the sums that the micro-batches of this step go to."""
        if total is not None and self._group is not None:
            raise InputError("Parameter `total` should not be given with `group`: class sums are kept for all classes.")
        if self._pending is None:
            self._pending = Accumulator(self._max_memory) if total is None else self._stream(total)
        first = self._pending.total if isinstance(self._pending, ClassStream) else None
        if total != first:
            raise InputError(
                f"Parameter `total` should be the same for all micro-batches of a step. Found {first} and {total}."
            )
        return self._pending

    def _reduce(self, sums: Accumulator) -> None:
        """Add up over the processes that share the batch."""
        if self._group is not None and self.classes is not None:
            sums.reduce(self._group, self.classes.tolist(), self.parameters)

    def _add_batch(self, sums: Accumulator, losses: Tensor, y: Tensor) -> None:
        layout = self._enter(losses, y)
        if layout.examples:
            with self._graph(losses) as graph:
                self._add(sums, losses, layout, graph, 1.0)

    def _add(self, sums: Accumulator, losses: Tensor, layout: ClassLayout, graph: Graph, scale: Tensor | float) -> None:
        plan = self._engines.plan(losses, layout, graph, self.parameters)
        terms = self._engines.terms(losses, layout, plan, self.parameters, scale / layout.examples)
        sums.add(terms, class_losses(losses, layout), layout, scale / layout.examples)

    def _stream(self, total: int) -> ClassStream:
        scopes = scope_of(self.parameters, self.model, self.rule)
        declared = [] if self.classes is None else self.classes.tolist()
        return ClassStream(scopes, self.rule, self._wishes, total, declared, self._reference)

    def _streams(self, plan: Plan | None, layout: ClassLayout) -> bool:
        """Whether the classes should be taken one by one: they may, and nothing shorter is possible."""
        if not self.rule.separable or self._wishes.gram:
            return False
        if plan is None or not plan.rest:
            return plan is None
        rest = [p for p in self.parameters if id(p) in plan.rest]
        return len(layout) * sum(p.numel() * p.element_size() for p in rest) > self._max_memory

    def _stream_classes(self, losses: Tensor, layout: ClassLayout, scale: Tensor | float) -> tuple[Step, Direction]:
        stream = self._stream(layout.examples)
        passes = class_passes(losses, layout, list(stream.scopes), scale / layout.examples, keep_graph=False)
        for position, (label, gradients) in enumerate(zip(layout.classes.tolist(), passes, strict=True)):
            stream.add(label, losses[layout.index == position], gradients, scale)
        return stream.finish()

    @property
    def _asks_gram(self) -> bool:
        return self._wishes.gram or "gram" in self.rule.needs

    def _plain(self, f: Tensor, norms: Tensor | None) -> bool:
        """Whether nothing needs the classes told apart, so that one ordinary backward pass will do."""
        asked = self.rule.needs or self._wishes.norms or self._wishes.gram
        blind = not asked and self.rule.per == "model" and self.rule.separable
        return (blind or norms is not None) and (f.is_cuda or bool(f.isfinite().all()))

    def _nothing(self, losses: Tensor, layout: ClassLayout) -> Step:
        zeros = losses.new_zeros(len(layout)).detach()
        step = Step(layout.classes, layout.counts, zeros, zeros, zeros == 0, zeros)
        refuse(step, self._wishes)
        return step


def _only_class(layout: ClassLayout) -> int:
    present = [label for label, size in zip(layout.classes.tolist(), layout.sizes, strict=True) if size]
    if len(present) > 1:
        raise InputError(
            f"Parameter `y` should hold one class per micro-batch when `total` is given. Found {len(present)}."
        )
    return int(present[0])

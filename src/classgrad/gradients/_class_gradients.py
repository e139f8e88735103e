"""The public object: class gradients of a model, in place of ``losses.mean().backward()``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from classgrad._errors import InputError
from classgrad.gradients import layers as layers  # enters the layer rules
from classgrad.gradients._accumulate import Accumulator
from classgrad.gradients._checks import check_labels, check_losses
from classgrad.gradients._combine import Reference, Wishes, class_losses, combine, refuse, scope_of
from classgrad.gradients._engines import Engine, Engines
from classgrad.gradients._joint import class_passes, gradients_of, joint_terms
from classgrad.gradients._layout import ClassLayout, class_layout, declared_classes
from classgrad.gradients._step import Step
from classgrad.gradients._stream import ClassStream, Direction
from classgrad.gradients._table import GradientTable, Verification
from classgrad.gradients._terms import Memory
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
    ) -> None:
        for name, value, choices in (
            ("engine", engine, get_args(Engine)),
            ("on_missing", on_missing, get_args(Outcome)),
            ("on_nonfinite", on_nonfinite, get_args(Outcome)),
        ):
            if value not in choices:
                raise InputError(f"Parameter `{name}` should be one of {', '.join(choices)}. Found {value!r}.")
        if not isinstance(model, nn.Module):
            raise InputError(f"Parameter `model` should be a torch.nn.Module. Found {type(model).__name__}.")
        if rule is not None and not isinstance(rule, Rule):
            raise InputError(f"Parameter `rule` should be a rule such as Normalize(). Found {rule!r}.")
        if max_memory < 0:
            raise InputError(f"Parameter `max_memory` should be a number of bytes of at least 0. Found {max_memory!r}.")
        self.model = model
        self.rule = rule or Normalize()
        self.engine = engine
        self._classes = declared_classes(classes)
        self._wishes = Wishes(norms, gram, on_missing, on_nonfinite)
        self._max_memory = max_memory
        self._engines = Engines(model, engine, max_memory, mixing)
        self._pending: Accumulator | ClassStream | None = None
        self._scale: Tensor | float = 1.0
        self._reference: Reference | None = None

    def __enter__(self) -> ClassGradients:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove the hooks from the model; the object is of no use afterwards."""
        self._engines.close()

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters that take part now: those that require gradients."""
        return [p for p in self.model.parameters() if p.requires_grad]

    def backward(self, losses: Tensor, y: Tensor, *, scaler: GradScaler | None = None) -> Step:
        """Add the direction Σ_l w_l g_l to ``p.grad``, as ``losses.mean().backward()`` adds the plain gradient.

        :param losses: one loss per example (``reduction="none"``), shape (N,).
        :param y: the class of each example, or any other grouping of them, shape (N,).
        :param scaler: the GradScaler of mixed precision; then step with ``scaler.step(optimizer)``. The direction is
            written times its scale, and an inf in a class gradient makes it skip the step.
        """
        if self.engine == "split":
            raise InputError("Engine 'split' runs the forward itself; use backward_through(loss_fn, x, y).")
        layout, calls = self._enter(losses, y)
        scale = _scale_of(scaler, losses)
        if not layout.examples:
            return self._nothing(losses, layout)
        seed = scale / layout.examples
        f = class_losses(losses, layout)
        with _plainly(losses):
            if self._plain(f):
                step, direction = self._sum(losses, layout, f, seed)
            elif self._streams(losses, layout, calls):
                step, direction = self._stream_classes(losses, layout, seed, scale)
            else:
                parameters = self.parameters
                terms = self._engines.terms(losses, layout, calls, parameters, seed)
                scopes = dict(zip(parameters, scope_of(parameters, self.model, self.rule), strict=True))
                step, direction = combine(
                    terms,
                    [scopes[p] for p in terms],
                    self.rule,
                    f,
                    layout,
                    self._wishes,
                    factor=scale,
                    target=scale,
                    reference=self._reference,
                )
            return self._write(step, direction, scaler)

    def accumulate(
        self, losses: Tensor, y: Tensor, *, scaler: GradScaler | None = None, total: int | None = None
    ) -> None:
        """Add a micro-batch to the step that :meth:`finalize` will make of all of them.

        Raw class sums are accumulated and normalized once, so the result is that of the whole batch at once. They take
        one gradient per class. If micro-batches hold one class each and come class by class, give the number of
        examples of the whole step as ``total``: then two gradients are kept, whatever the number of classes.
        """
        layout, calls = self._enter(losses, y)
        if not layout.examples:
            return
        self._scale = _scale_of(scaler, losses)
        parameters = self.parameters
        with _plainly(losses):
            if total is None:
                accumulator = self._begin(Accumulator, lambda: Accumulator(self._max_memory))
                seed = self._scale / layout.examples
                terms = self._engines.terms(losses, layout, calls, parameters, seed)
                accumulator.add(terms, class_losses(losses, layout), layout)
                return
            present = [label for label, size in zip(layout.classes.tolist(), layout.sizes, strict=True) if size]
            if len(present) > 1:
                raise InputError(
                    f"Parameter `y` should hold one class per micro-batch when `total` is given. Found {len(present)}."
                )
            stream = self._begin(ClassStream, lambda: self._stream(total))
            seeds = torch.ones_like(losses) * (self._scale / total)
            stream.add(present[0], losses, gradients_of(losses, parameters, seeds, retain_graph=False))

    def finalize(self, *, scaler: GradScaler | None = None) -> Step:
        """Make the step of all micro-batches since the last one."""
        pending, self._pending = self._pending, None
        if pending is None:
            raise InputError("finalize() should follow at least one accumulate() with examples. Found none.")
        with torch.no_grad():
            if isinstance(pending, ClassStream):
                step, direction = pending.finish()
                return self._write(step, direction, scaler)
            terms, losses, layout = pending.finish()
            parameters = self.parameters
            scopes = dict(zip(parameters, scope_of(parameters, self.model, self.rule), strict=True))
            step, direction = combine(
                terms,
                [scopes[p] for p in terms],
                self.rule,
                losses,
                layout,
                self._wishes,
                factor=self._scale * layout.examples,
                target=self._scale,
                reference=self._reference,
            )
            return self._write(step, direction, scaler)

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
        examples of one class at a time, which streams a full batch through two gradient buffers.
        """
        if chunk is not None and chunk < 1:
            raise InputError(f"Parameter `chunk` should be at least 1. Found {chunk!r}.")
        if self.engine != "split" and chunk is None:
            return self.backward(loss_fn(x, y), y, scaler=scaler)
        y = check_labels(y, len(x), y.device if isinstance(y, Tensor) else torch.device("cpu"))
        layout = class_layout(y, self._classes)
        order = y.argsort(stable=True)
        streams = self.rule.separable and not self._wishes.gram
        for first, last in layout.bounds:
            for start in range(first, last, chunk or max(1, last - first)):
                part = order[start : min(last, start + chunk) if chunk else last]
                losses = loss_fn(x[part.to(x.device)], y[part])
                self.accumulate(losses, y[part], scaler=scaler, total=len(y) if streams else None)
        return self.finalize(scaler=scaler) if len(y) else self._nothing(torch.zeros(0), layout)

    def gradients(self, losses: Tensor, y: Tensor) -> GradientTable:
        """Return the class gradients themselves; ``p.grad`` is left alone."""
        layout, calls = self._enter(losses, y)
        with _plainly(losses):
            return self._table(losses, layout, calls, keep_graph=False)

    def refresh(self, loss_fn: LossFunction, batches: Iterable[tuple[Any, Tensor]]) -> None:
        """Take the class gradients over all ``batches`` as the full-batch ones that ``Rescale`` projects on.

        ``loss_fn(x, y)`` returns one loss per example of a batch. They stay in use until the next call.
        """
        accumulator = Accumulator(self._max_memory)
        for x, y in batches:
            losses = loss_fn(x, y)
            layout, calls = self._enter(losses, y)
            if layout.examples:
                with _plainly(losses):
                    terms = self._engines.terms(losses, layout, calls, self.parameters, 1 / layout.examples)
                    accumulator.add(terms, class_losses(losses, layout), layout)
        with torch.no_grad():
            self._reference = accumulator.units()

    def verify(self, losses_fn: LossFunction, batch: tuple[Any, Tensor]) -> Verification:
        """Compare the engine in use with one backward pass per class, on one forward pass over ``batch`` = (x, y)."""
        x, y = batch
        losses = losses_fn(x, y)
        layout, calls = self._enter(losses, y)
        with _plainly(losses):
            found = self._table(losses, layout, calls, keep_graph=True)
            terms = joint_terms(losses, layout, self.parameters, 1 / max(1, layout.examples), Memory(2**62))
            errors = {}
            for name, p in self.model.named_parameters():
                if p in terms:
                    reference = terms[p].dense(0, len(layout))
                    errors[name] = float((found.named[name] - reference).norm() / reference.norm().clamp_min(1e-300))
        return Verification("fused" if self.engine == "auto" else self.engine, errors)

    # ------------------------------------------------------------------------------------------------------------

    def _enter(self, losses: Tensor, y: Tensor) -> tuple[ClassLayout, list[Any]]:
        if self._engines.closed:
            raise InputError("This ClassGradients was closed; make a new one.")
        check_losses(losses)
        labels = check_labels(y, len(losses), losses.device)
        return class_layout(labels, self._classes), self._engines.take(len(losses))

    def _begin(self, kind: type[Any], make: Callable[[], Any]) -> Any:
        if self._pending is None:
            self._pending = make()
        if not isinstance(self._pending, kind):
            raise InputError("Give `total` to all micro-batches of a step or to none.")
        return self._pending

    def _stream(self, total: int) -> ClassStream:
        parameters = self.parameters
        scopes = scope_of(parameters, self.model, self.rule)
        return ClassStream(parameters, scopes, self.rule, self._wishes, total, self._scale, self._reference)

    def _streams(self, losses: Tensor, layout: ClassLayout, calls: list[Any]) -> bool:
        """Whether the step falls to the joint engine with a rule that can take the classes one by one."""
        if not self.rule.separable or self._wishes.gram:
            return False
        return self._engines.plan(losses, layout, calls, self.parameters) is None

    def _stream_classes(
        self, losses: Tensor, layout: ClassLayout, seed: Tensor | float, scale: Tensor | float
    ) -> tuple[Step, Direction]:
        self._scale = scale
        stream = self._stream(layout.examples)
        passes = class_passes(losses, layout, stream.parameters, seed, keep_graph=False)
        for position, (label, gradients) in enumerate(zip(layout.classes.tolist(), passes, strict=True)):
            stream.add(label, losses[layout.index == position], gradients)
        return stream.finish()

    def _plain(self, f: Tensor) -> bool:
        """Whether nothing needs the classes told apart, so that one ordinary backward pass will do."""
        asked = self.rule.needs or self._wishes.norms or self._wishes.gram
        return not asked and self.rule.per == "model" and self.rule.separable and bool(f.isfinite().all())

    def _sum(self, losses: Tensor, layout: ClassLayout, f: Tensor, seed: Tensor | float) -> tuple[Step, Direction]:
        """One ordinary backward pass with each example's loss weighed as its class."""
        step, _ = combine({}, [], self.rule, f, layout, self._wishes)
        refuse(step, self._wishes)
        parameters = self.parameters
        seeds = (step.weights.to(losses) * seed)[layout.index]
        gradients = gradients_of(losses, parameters, seeds, retain_graph=False)
        return step, {p: g for p, g in zip(parameters, gradients, strict=True) if g is not None}

    def _table(self, losses: Tensor, layout: ClassLayout, calls: list[Any], keep_graph: bool) -> GradientTable:
        terms = self._engines.terms(losses, layout, calls, self.parameters, 1 / max(1, layout.examples), keep_graph)
        named = {
            name: terms[p].dense(0, len(layout)) if p in terms else p.new_zeros(len(layout), *p.shape)
            for name, p in self.model.named_parameters()
            if p.requires_grad
        }
        return GradientTable(layout.classes, layout.counts, class_losses(losses, layout), named)

    def _nothing(self, losses: Tensor, layout: ClassLayout) -> Step:
        zeros = losses.new_zeros(len(layout)).detach()
        step = Step(layout.classes, layout.counts, zeros, zeros, zeros)
        refuse(step, self._wishes)
        return step

    def _write(self, step: Step, direction: Direction, scaler: GradScaler | None) -> Step:
        if scaler is not None and direction and step.norms is not None:
            bad = ~(step.norms.isfinite() & step.losses.isfinite()).all()
            first = next(iter(direction.values()))
            first += torch.where(bad, first.new_full((), torch.inf), first.new_zeros(()))
        for p, part in direction.items():
            part = part.to(p.dtype)
            if p.grad is None:
                p.grad = part
            else:
                p.grad += part
        return step


def _scale_of(scaler: GradScaler | None, losses: Tensor) -> Tensor | float:
    """Return the loss scale as a tensor on the device, without waiting for it."""
    if scaler is None or not scaler.is_enabled():
        return 1.0
    scale: Tensor = scaler.scale(torch.ones((), dtype=torch.float32, device=losses.device))
    return scale


class _plainly:
    """No graph and no autocast: class gradients are combined in the precision they have."""

    def __init__(self, like: Tensor) -> None:
        self._contexts = (torch.no_grad(), torch.autocast(like.device.type, enabled=False))

    def __enter__(self) -> None:
        for context in self._contexts:
            context.__enter__()

    def __exit__(self, *error: object) -> None:
        for context in reversed(self._contexts):
            context.__exit__(None, None, None)

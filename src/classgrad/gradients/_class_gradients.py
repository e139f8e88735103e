"""The public object: class gradients of a model, in place of ``losses.mean().backward()``."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.distributed import ProcessGroup

from classgrad._errors import InputError
from classgrad.gradients import layers as layers  # enters the layer rules
from classgrad.gradients._accumulate import Accumulator
from classgrad.gradients._basis import Basis
from classgrad.gradients._checks import check_choice, check_group, check_labels, check_rule, check_settings
from classgrad.gradients._combine import Reference, Wishes
from classgrad.gradients._layout import ClassLayout, declared_classes
from classgrad.gradients._lazy import LazyNorms, lazy_norms
from classgrad.gradients._micro_batches import LossFunction, MicroBatches
from classgrad.gradients._research import gradient_table, verification
from classgrad.gradients._select import holds, select
from classgrad.gradients._single import SingleStep
from classgrad.gradients._step import Step
from classgrad.gradients._table import GradientTable, Verification
from classgrad.gradients.engines._engines import Engine, Engines
from classgrad.gradients.replays._recorder import Tally
from classgrad.rules import Normalize, Rule

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
    :param record: on a GPU, record what :meth:`backward` launches for itself, at every layer and at the end, and replay
        it for batches with as many examples of each class, which takes the host far less time. Some memory is held for
        it between steps. The result is the same to the last bit.
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
        record: bool = True,
    ) -> None:
        choices = {"engine": Engine, "on_missing": Outcome, "on_nonfinite": Outcome}
        for name, value in (("engine", engine), ("on_missing", on_missing), ("on_nonfinite", on_nonfinite)):
            check_choice(name, value, get_args(choices[name]))
        check_settings(model, rule, max_memory, mixing, record)
        check_group(model, group, classes)
        self.model = model
        self.engine = engine
        self.classes = declared_classes(classes)
        self._engines = Engines(model, engine, max_memory, mixing)
        wishes = Wishes(norms, gram, on_missing, on_nonfinite)
        self._basis = Basis(model, rule or Normalize(), self._engines, self.classes, wishes, group)
        self._single = SingleStep(self._basis, self._remembering(), record)
        self._micro_batches = MicroBatches(self._basis)
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
    def rule(self) -> Rule:
        """How the classes are weighed."""
        return self._basis.rule

    @rule.setter
    def rule(self, rule: Rule) -> None:
        check_rule(rule)
        if rule is not self.rule:
            self._basis.rule = rule
            self._single.norms = self._remembering()

    def _remembering(self) -> LazyNorms | None:
        """Return what remembers norms from step to step, if the rule wants that and the settings allow for it."""
        wishes = self._basis.wishes
        exact = wishes.norms or wishes.gram or self._basis.group is not None or self.engine == "split"
        return None if exact else lazy_norms(self.rule)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters that take part now, those that require gradients."""
        return self._basis.parameters

    @property
    def recordings(self) -> Tally:
        """How much of the steps on a GPU was replayed so far; see ``record``."""
        return self._single.tally

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
        if self._basis.group is not None:
            self.accumulate(losses, y, scaler=scaler)
            return self.finalize(scaler=scaler)
        return self.backward_laid_out(losses, self._basis.enter(losses, y), scaler)

    def backward_laid_out(
        self, losses: Tensor, layout: ClassLayout, scaler: GradScaler | None = None, *, lazy: bool | None = None
    ) -> Step:
        """Do what :meth:`backward` does for labels that are laid out already; on a GPU this never waits for it.

        ``lazy`` makes a step of that kind, such as :meth:`lazy` found due, and leaves its counting to :meth:`made`:
        for a step that is recorded now and replayed many times. The norms are remembered by the replay itself.
        """
        return self._single.make(losses, layout, scaler, lazy)

    def lazy(self, layout: ClassLayout) -> bool:
        """Say, before its forward even, whether the next step will go by remembered norms if its batch is such."""
        return self._single.lazy(layout)

    def made(self, step: Step, layout: ClassLayout) -> None:
        """Count a step that was replayed from a recording.

        Where classes are not declared the next one will be exact: recordings of different classes do not know of each
        other.
        """
        self._single.made(step, layout)

    def state_dict(self) -> dict[str, Any]:
        """Give what is remembered between steps under a rule with ``refresh``, as a tensor and plain values.

        The full-batch class gradients of :meth:`refresh` are not among it.
        """
        norms = self._single.norms
        return {} if norms is None else norms.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on as the object that :meth:`state_dict` was taken from would have."""
        if self._single.norms is not None:
            self._single.norms.load_state_dict(state, next(iter(self.model.parameters())).device)

    def accumulate(
        self, losses: Tensor, y: Tensor, *, scaler: GradScaler | None = None, total: int | None = None
    ) -> None:
        """Add a micro-batch to the step that :meth:`finalize` will make of all of them.

        Raw class sums are accumulated and normalized once, so the result is that of the whole batch at once. They take
        one gradient per class. If micro-batches hold one class each and come class by class, give the number of
        examples of the whole step as ``total``: then two gradients are kept, whatever the number of classes.
        """
        self._micro_batches.add(losses, y, scaler, total)

    def finalize(self, *, scaler: GradScaler | None = None) -> Step:
        """Make the step of all micro-batches since the last one, under the scaler they were given."""
        return self._micro_batches.finish(scaler)

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
        layer; random layers such as dropout then draw for them in that order. So everything that belongs to single
        examples, such as their weights, must come to ``loss_fn`` as part of ``x``.

        A step that goes by remembered norms (see :meth:`backward`) is cheaper this way: that is known before the
        forward, so the hooks rest.
        """
        if chunk is not None and (type(chunk) is not int or chunk < 1):
            raise InputError(f"Parameter `chunk` should be a whole number of at least 1. Found {chunk!r}.")
        if self.engine != "split" and chunk is None:
            return self._through(loss_fn, x, y, scaler)
        return self._micro_batches.by_class(loss_fn, x, y, chunk, scaler)

    def gradients(self, losses: Tensor, y: Tensor | ClassLayout) -> GradientTable:
        """Return the class gradients themselves; ``p.grad`` is left alone."""
        return gradient_table(self._basis, losses, y)

    def refresh(self, loss_fn: LossFunction, batches: Iterable[tuple[Any, Tensor]]) -> None:
        """Take the class gradients over all ``batches`` as the full-batch ones that ``Rescale`` projects on.

        ``loss_fn(x, y)`` returns one loss per example of a batch. They stay in use until the next call.
        """
        sums = Accumulator(self._basis.max_memory)
        for x, y in batches:
            self._basis.add_batch(sums, loss_fn(x, y), y)
        with torch.no_grad():
            self._basis.reduce(sums)
            self._basis.reference = sums.units()

    def verify(self, losses_fn: LossFunction, batch: tuple[Any, Tensor]) -> Verification:
        """Compare the engine in use with one backward pass per class, on ``batch`` = (x, y).

        Class gradients, their norms and their sum are compared, each made the way a step would make it.
        """
        return verification(self._basis, self.engine == "split", losses_fn, batch)

    @property
    def _reference(self) -> Reference | None:
        return self._basis.reference

    def _through(self, loss_fn: LossFunction, x: Any, y: Tensor, scaler: GradScaler | None) -> Step:
        basis = self._basis
        if basis.group is not None or not isinstance(y, Tensor):
            return self.backward(loss_fn(x, y), y, scaler=scaler)
        layout = basis.layout_of(check_labels(y, len(y), y.device))
        if layout.order is not None and self._engines.fused and holds(x, layout.examples):
            x, y = select(x, layout.order), layout.group(y)
            layout = layout.grouped()
        with self._engines.forward(layout, self.lazy(layout)):
            losses = loss_fn(x, y)
        basis.check(losses, y)
        return self.backward_laid_out(losses, layout, scaler)

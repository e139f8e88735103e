"""The whole step as one CUDA graph: forward, class gradients, rule and, if wanted, the optimizer's update."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from classgrad._errors import InputError
from classgrad.gradients._by_class import step_laid_out
from classgrad.gradients._checks import check_labels
from classgrad.gradients._class_gradients import ClassGradients
from classgrad.gradients._layout import ClassLayout, class_layout
from classgrad.gradients._step import Step
from classgrad.gradients.captured._recorded_update import RecordedUpdate
from classgrad.gradients.captured._recordings import Recordings, Unrecordable

LossFunction = Callable[[Tensor, Tensor], Tensor]


class CapturedStep:
    """``loss_fn(x, y)`` and the class-gradient step on it, recorded and replayed as a CUDA graph.

    Launching the many small operations of a step one by one costs more than running them; a replay launches all at
    once. A recording is made for every make-up of a batch (shape of ``x``, number of examples of each class) when it
    comes the second time, so batches should come from a sampler whose batches are alike; the first time, and beyond 16
    make-ups, the step simply runs, as it does on the CPU. ``x`` may be indices that ``loss_fn`` looks up on the device.

    Without ``optimizer`` each call *overwrites* ``p.grad`` and leaves the update to the caller. With one the update is
    part of the recording and ``p.grad`` is None after it; change learning rates as always, by ``param_groups`` or a
    scheduler. SGD must be made with ``fused=True`` for this, others with ``capturable=True``. The tensors of the step
    that is returned are overwritten by the next call. Which parameters are trained and whether the model is in
    training mode must not change.

    ``loss_fn`` must do the same operations every time and never wait for the device (no ``.item()``, no Python ``if``
    on values); ``generators`` are those it draws from besides torch's own. Labels on the CPU save a wait for the
    device, and so does ``like``.
    """

    def __init__(
        self,
        grads: ClassGradients,
        loss_fn: LossFunction,
        optimizer: Optimizer | None = None,
        *,
        generators: Sequence[torch.Generator] = (),
    ) -> None:
        self.grads = grads
        self.loss_fn = loss_fn
        self._update = None if optimizer is None else RecordedUpdate(optimizer)
        self._recordings = Recordings(generators)
        self._laid_out: dict[Hashable, tuple[ClassLayout, Tensor]] = {}

    def __call__(self, x: Tensor, y: Tensor, *, like: Hashable = None) -> Step:
        """Make the step on a batch: x is copied to where the recording reads it, and it is replayed.

        Batches that are given the same ``like`` must be grouped by class and hold the same number of each class; only
        the labels of the first are looked at.
        """
        if like is None:
            labels = check_labels(y, len(x), y.device).cpu()
            layout = class_layout(labels, self.grads.classes)
            x = x if layout.order is None else x.index_select(0, layout.order.to(x.device))
            key: Hashable = (tuple(layout.labels), layout.make_up.key)
            labels = layout.group(labels)
        else:
            key, labels = like, y
        key = (key, x.shape, x.dtype)
        if key not in self._laid_out:
            self._laid_out[key] = _lay_out(labels.to(x.device), self.grads.classes)
        if self._update is not None:
            self._update.fill()
        layout, labels = self._laid_out[key]
        if not x.is_cuda:
            return self._work(x, labels, layout)[0]
        step, gradients = self._replayed(key, x, labels, layout)
        for p, gradient in gradients.items():
            p.grad = gradient
        self.grads.made(step, layout)
        return replace(step)

    def _replayed(
        self, key: Hashable, x: Tensor, y: Tensor, layout: ClassLayout
    ) -> tuple[Step, dict[nn.Parameter, Tensor]]:
        settings = None if self._update is None else self._update.key
        lazy = self.grads.lazy(layout)
        # A rule that comes back remembers norms anew, and recordings write to what remembered them before.
        rule = self.grads.rule, self.grads._single.norms
        try:
            return self._recordings((key, settings, lazy, rule), lambda batch: self._work(batch, y, layout, lazy), x)
        except Unrecordable as error:
            raise InputError(f"{error} Use ClassGradients.backward for this model and loss.") from error

    def _work(
        self, x: Tensor, y: Tensor, layout: ClassLayout, lazy: bool | None = None
    ) -> tuple[Step, dict[nn.Parameter, Tensor]]:
        for p in self.grads.parameters:
            p.grad = None
        step = step_laid_out(self.grads, lambda batch: self.loss_fn(batch, y), x, layout, lazy)
        if self._update is not None:
            self._update()
        return step, {p: p.grad for p in self.grads.parameters if p.grad is not None}


def _lay_out(labels: Tensor, classes: Tensor | None) -> tuple[ClassLayout, Tensor]:
    layout = class_layout(labels, classes)
    if layout.order is not None:
        raise InputError("Parameter `like` should be given for batches grouped by class. Found one that is not.")
    layout.prepare()
    return layout, labels

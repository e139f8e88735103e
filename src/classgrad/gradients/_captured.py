"""The whole step, forward included, as one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from classgrad._errors import InputError
from classgrad.gradients._checks import check_labels
from classgrad.gradients._class_gradients import ClassGradients
from classgrad.gradients._layout import ClassLayout, class_layout
from classgrad.gradients._step import Step


@dataclass(frozen=True)
class _Recording:
    """A graph with the tensors it reads and writes, which stay where they are."""

    graph: torch.cuda.CUDAGraph
    x: Tensor
    y: Tensor
    layout: ClassLayout
    step: Step
    gradients: dict[nn.Parameter, Tensor]


class CapturedStep:
    """``loss_fn(x, y)`` and the class-gradient step on it, recorded once and replayed as a CUDA graph.

    Launching the many small operations of a step one by one costs more than running them; a replay launches all at
    once. A recording is made for every make-up of a batch (shape of ``x``, number of examples of each class), so
    batches should come from a sampler whose batches are alike. ``x`` may be indices that ``loss_fn`` looks up on the
    device.

    Each call *overwrites* ``p.grad``, and the tensors of the step it returns are overwritten by the next call. The
    optimizer's step and learning rate stay outside, so both may change at will; which parameters are trained and
    whether the model is in training mode may not. On the CPU the step simply runs.

    ``loss_fn`` must do the same operations every time and never wait for the device (no ``.item()``, no Python ``if``
    on values). Labels on the CPU save a wait for the device.
    """

    def __init__(self, grads: ClassGradients, loss_fn: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.grads = grads
        self.loss_fn = loss_fn
        self._recordings: dict[object, _Recording] = {}
        self._pool: Any = None

    def __call__(self, x: Tensor, y: Tensor) -> Step:
        """Make the step on a batch: x and y are copied to where the recording reads them, and it is replayed."""
        labels = check_labels(y, len(x), y.device).cpu()
        layout = class_layout(labels, self.grads.classes)
        x = x if layout.order is None else x.index_select(0, layout.order.to(x.device))
        labels = layout.group(labels)
        if not x.is_cuda:
            self._forget()
            return self.grads.backward(self.loss_fn(x, labels), labels)
        key = (tuple(layout.classes.tolist()), tuple(layout.sizes), x.shape, x.dtype)
        if key not in self._recordings:
            self._recordings[key] = self._record(x, labels.to(x.device))
        recording = self._recordings[key]
        recording.x.copy_(x)
        recording.graph.replay()
        for p, gradient in recording.gradients.items():
            p.grad = gradient
        return replace(recording.step)

    def _record(self, x: Tensor, y: Tensor) -> _Recording:
        x, y = x.clone(), y.clone()
        layout = class_layout(y, self.grads.classes)
        layout.prepare()
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):  # libraries set themselves up, and the graph is audited, on a run that is not recorded
                self._forget()
                self.grads.backward_laid_out(self.loss_fn(x, y), layout)
        torch.cuda.current_stream().wait_stream(stream)
        self._forget()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool):
                step = self.grads.backward_laid_out(self.loss_fn(x, y), layout)
        except RuntimeError as error:
            raise InputError(
                f"The step cannot be recorded as a CUDA graph ({str(error).splitlines()[0]}); "
                "use ClassGradients.backward for this model and loss."
            ) from error
        self._pool = graph.pool()
        gradients = {p: p.grad for p in self.grads.parameters if p.grad is not None}
        return _Recording(graph, x, y, layout, step, gradients)

    def _forget(self) -> None:
        for p in self.grads.parameters:
            p.grad = None

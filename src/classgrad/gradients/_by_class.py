"""Steps on batches of known make-up: what a recording needs, since nothing waits for the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

import torch
from torch import Tensor

from classgrad.gradients._class_gradients import ClassGradients
from classgrad.gradients._layout import ClassLayout
from classgrad.gradients._step import Step
from classgrad.gradients._write import write
from classgrad.gradients.engines._joint import gradients_of

LossOf = Callable[[Tensor], Tensor]
"""From examples to one loss for each."""


def step_laid_out(
    grads: ClassGradients, loss_of: LossOf, x: Tensor, layout: ClassLayout, lazy: bool | None = None
) -> Step:
    """Make the step on examples ``x`` whose classes are laid out, going by remembered norms if that is due.

    With ``lazy`` given it is decided already; then say ``grads.made(step, layout)`` after the step and each replay.
    """
    with grads._engines.forward(layout, grads.lazy(layout) if lazy is None else lazy):
        losses = loss_of(x)
    return grads.backward_laid_out(losses, layout, lazy=lazy)


def step_by_class(grads: ClassGradients, loss_of: LossOf, x: Tensor, counts: Sequence[int], chunk: int) -> Step:
    """Make the step of :meth:`ClassGradients.backward_through` on examples ``x`` that are grouped by class.

    ``counts`` are the numbers of examples of the classes 0, 1, ...; at most ``chunk`` of one class are run at a time.
    """
    stream = grads._basis.stream(len(x))
    for label, losses, gradients in _pieces(grads, loss_of, x, counts, chunk):
        with torch.no_grad():
            stream.add(label, losses, gradients)
    with torch.no_grad():
        return write(*stream.finish(), grads._basis.sparse, None)


def refresh_by_class(grads: ClassGradients, loss_of: LossOf, x: Tensor, counts: Sequence[int], chunk: int) -> None:
    """Do what :meth:`ClassGradients.refresh` does, on examples as for :func:`step_by_class`.

    The full-batch class gradients are written to where the last ones were, so that recordings find them.
    """
    parameters = grads.parameters
    reference = grads._basis.reference
    if reference is None:
        labels = [label for label, count in enumerate(counts) if count]
        reference = {label: {p: torch.zeros_like(p) for p in parameters} for label in labels}
        grads._basis.reference = reference
    for label, pieces in groupby(_pieces(grads, loss_of, x, counts, chunk), key=lambda piece: piece[0]):
        sums = [torch.zeros_like(p) for p in parameters]
        for _, _, gradients in pieces:
            for total, gradient in zip(sums, gradients, strict=True):
                if gradient is not None:
                    total += gradient
        norm = torch.stack([total.norm() for total in sums]).norm()
        usable = (norm > 0) & norm.isfinite()
        for p, total in zip(parameters, sums, strict=True):
            reference[label][p].copy_(torch.where(usable, total / norm, 0.0))


def _pieces(
    grads: ClassGradients, loss_of: LossOf, x: Tensor, counts: Sequence[int], chunk: int
) -> Iterator[tuple[int, Tensor, Sequence[Tensor | None]]]:
    """Yield label, losses and gradients of 1/n Σ losses, piece after piece of each class."""
    first = 0
    for label, count in enumerate(counts):
        for start in range(first, first + count, chunk):
            losses = loss_of(x[start : min(start + chunk, first + count)])
            seeds = torch.full_like(losses, 1 / len(x))
            yield label, losses.detach(), gradients_of(losses, grads.parameters, seeds, retain_graph=False)
        first += count

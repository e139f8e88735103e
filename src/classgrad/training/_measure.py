"""What is measured at a point of a run, never touching a training generator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

import torch
from torch import Tensor, nn

from classgrad.dynamics import class_loss_sums, confusion_matrix, orthogonal_noise, projection, to_population
from classgrad.gradients import ClassGradients, ClassLayout

Forward = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]
"""From example indices to logits, one loss per example, and labels."""

MAX_MEMORY = 8 * 2**30
"""Bytes that the class gradients of the whole training set may take at once."""

ROWS = 4096
"""Most examples at once where their class gradients are made, which takes more memory than a plain pass."""

_COLUMNS = 2**20  # parameters whose products are added at a time in double precision


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model into evaluation mode for a while: dropout is off and draws nothing."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def chunks(order: Tensor, size: int) -> Iterator[Tensor]:
    """Yield pieces of at most ``size`` examples."""
    for start in range(0, len(order), size):
        yield order[start : start + size]


def evaluate(forward: Forward, order: Tensor, classes: int, chunk: int) -> dict[str, Tensor]:
    """Confusion matrix and mean loss of every class over the examples of ``order``, ``chunk`` at a time."""
    confusion = torch.zeros(classes, classes, dtype=torch.int64, device=order.device)
    sums = torch.zeros(classes, dtype=torch.float64, device=order.device)
    with torch.no_grad():
        for part in chunks(order, chunk):
            logits, losses, y = forward(part)
            confusion += confusion_matrix(logits.argmax(-1), y, classes)
            sums += class_loss_sums(losses, y, classes)
    return {"confusion": confusion, "loss": sums / confusion.sum(-1)}


class ClassRows:
    """Class gradients g_l of a set of examples as rows of a matrix, made chunk by chunk.

    ``members`` are the example indices of every class; g_l is the sum over those, divided by all examples.
    """

    def __init__(self, grads: ClassGradients, forward: Forward, chunk: int) -> None:
        self._grads = grads
        self._forward = forward
        self._chunk = chunk

    def of(self, members: Sequence[Tensor], labels: Sequence[int]) -> Tensor:
        """Rows for the classes ``labels``, shape (len(labels), parameters)."""
        parameters = self._grads.parameters
        rows = torch.zeros(
            len(labels),
            sum(p.numel() for p in parameters),
            dtype=parameters[0].dtype,
            device=parameters[0].device,
        )
        total = sum(len(indices) for indices in members)
        order = torch.cat([members[label] for label in labels])
        counts = tuple(len(members[label]) for label in labels)
        for start, stop, where, layout in _pieces(counts, tuple(labels), self._chunk, order.device):
            losses = self._forward(order[start:stop])[1]
            table = self._grads.gradients(losses, layout)
            rows[where] += table.matrix.to(rows.dtype) * ((stop - start) / total)
        return rows

    def gram(self, members: Sequence[Tensor], limit: int = MAX_MEMORY) -> tuple[Tensor, Tensor | None]:
        """K of all classes, and the rows if all fit into ``limit`` bytes.

        Where they do not fit, blocks of rows are paired, each made anew for every pair: more time, never more memory.
        """
        parameters = self._grads.parameters
        row_bytes = sum(p.numel() * p.element_size() for p in parameters)
        classes = len(members)
        if classes * row_bytes <= limit:
            rows = self.of(members, range(classes))
            return products(rows, rows), rows
        size = max(1, limit // (2 * row_bytes))
        blocks = [range(start, min(start + size, classes)) for start in range(0, classes, size)]
        gram = torch.zeros(classes, classes, dtype=torch.float64, device=parameters[0].device)
        for number, first in enumerate(blocks):
            rows = self.of(members, first)
            for second in blocks[number:]:
                block = products(rows, rows if second is first else self.of(members, second))
                gram[first.start : first.stop, second.start : second.stop] = block
                gram[second.start : second.stop, first.start : first.stop] = block.T
        return gram, None


@lru_cache(maxsize=16)
def _pieces(
    counts: tuple[int, ...], labels: tuple[int, ...], chunk: int, device: torch.device
) -> list[tuple[int, int, Tensor, ClassLayout]]:
    """Cut examples that are grouped by class: where each piece starts and stops, its rows and its layout.

    They are laid out once, since that waits for the device, and the same make-up comes at every point.
    """
    position = torch.repeat_interleave(torch.arange(len(labels)), torch.tensor(counts, dtype=torch.int64))
    pieces = []
    for start in range(0, len(position), chunk):
        part = position[start : start + chunk]
        where, index = part.unique(return_inverse=True)  # type: ignore[no-untyped-call]
        layout = ClassLayout(torch.tensor(labels, dtype=torch.int64)[where].to(device), index.to(device))
        layout.prepare()
        pieces.append((start, start + len(part), where.to(device), layout))
    return pieces


def products(first: Tensor, second: Tensor) -> Tensor:
    """Inner products of the rows of two matrices, in double precision."""
    total = torch.zeros(len(first), len(second), dtype=torch.float64, device=first.device)
    for start in range(0, first.shape[1], _COLUMNS):
        columns = slice(start, start + _COLUMNS)
        total += first[:, columns].double() @ second[:, columns].double().T
    return total


def batch_noise(batch: Tensor, full: Tensor, batch_counts: Tensor, counts: Tensor) -> dict[str, Tensor]:
    """Projection p_l and relative orthogonal noise of a batch's class directions (Sec. 4.1); nan where absent."""
    factors = to_population(batch_counts, counts).nan_to_num(0.0).to(batch).unsqueeze(-1)
    scaled = batch * factors
    return {"projection": projection(scaled, full), "noise": orthogonal_noise(scaled, full)}


def flat(parameters: Sequence[Tensor]) -> Tensor:
    """Copy the parameters into one vector."""
    return torch.cat([p.detach().flatten() for p in parameters])

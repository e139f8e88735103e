"""What one update does on the device: the gradients of a batch and, where it can be recorded, the optimizer's step."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from classgrad.gradients import (
    ClassGradients,
    ClassLayout,
    RecordedUpdate,
    Recordings,
    Step,
    Unrecordable,
    class_layout,
    refresh_by_class,
    step_by_class,
    step_laid_out,
)
from classgrad.training._measure import chunks
from classgrad.training._update import PlainStep

Logits = Callable[[Tensor], tuple[Tensor, Tensor]]
"""From example indices to logits and labels."""


Seen = tuple[Step | PlainStep, list[Tensor | None]]
"""What was seen, and the gradients where the update does not use them up."""


class Work:
    """Gradients of batches of examples, given as indices, replayed as CUDA graphs on a GPU.

    Args:
        parameters: what is trained.
        labels: of all examples.
        grads: the class gradients, or None for the plain gradient.
        logits: the forward pass in training.
        quiet: one loss per example, in evaluation mode, for the full-batch class gradients.
        within: gives what the work is done within, where it is done and not replayed.
        counts: examples of each class in every batch, grouped by class; None where batches differ.
        chunk: most examples at once.
        by_class: take the classes one after the other, each in a forward and backward pass of its own.
        update: the optimizer's step, if it is part of the work.
        capture: whether to record; what cannot be recorded is run, with one warning.
        generators: what the forward pass draws from, besides torch's own.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        labels: Tensor,
        grads: ClassGradients | None,
        logits: Logits,
        quiet: Callable[[Tensor], Tensor],
        *,
        within: Callable[[], AbstractContextManager[object]],
        counts: Sequence[int] | None,
        chunk: int,
        by_class: bool,
        update: RecordedUpdate | None,
        capture: bool,
        generators: Sequence[torch.Generator],
    ) -> None:
        self._parameters = parameters
        self._labels = labels
        self._grads = grads
        self._logits = logits
        self._quiet = quiet
        self._within = within
        self._counts = counts
        self._chunk = chunk
        self._by_class = by_class
        self._update = update
        self._layouts: dict[int, ClassLayout] = {}
        alike = grads is None or counts is not None
        waits = grads is not None and not by_class and counts is not None and sum(counts) > chunk
        self._alike = alike and not waits
        self._recordings = Recordings(generators) if capture and self._alike else None
        # Apart from the others: what it writes is read by them for many steps.
        self._refreshes = Recordings() if capture else None

    @property
    def updates(self) -> bool:
        """Whether the optimizer's step is part of the work."""
        return self._update is not None

    @property
    def recordings(self) -> int:
        """The number of recordings."""
        return sum(len(some) for some in (self._recordings, self._refreshes) if some is not None)

    def busy_seconds(self) -> float:
        """Tell how long the GPU worked on replays."""
        return sum(some.busy_seconds() for some in (self._recordings, self._refreshes) if some is not None)

    def close(self) -> None:
        """Let go of the recordings, whose memory is theirs alone."""
        self._recordings = self._refreshes = None

    def __call__(self, indices: Tensor) -> Step | PlainStep:
        """Leave the gradients of a batch in ``p.grad``, or make the update with them."""
        if self._update is not None:
            self._update.fill()
        layout = self._layout(indices) if self._alike else None
        if self._recordings is not None:
            lazy = self._grads is not None and layout is not None and self._grads.lazy(layout)
            key: Hashable = (len(indices), lazy, None if self._update is None else self._update.key)
            run = partial(self._run, layout=layout, lazy=lazy)
            try:
                seen, gradients = self._recordings(key, run, indices)
            except Unrecordable as error:
                self._give_up(error)
                seen, gradients = run(indices)
            for p, gradient in zip(self._parameters, gradients, strict=True):
                p.grad = gradient  # a replay fills it but does not put it there
            if self._grads is not None and layout is not None and isinstance(seen, Step):
                self._grads.made(seen, layout)
            return seen
        return self._run(indices, layout)[0]

    def refresh(self, order: Tensor, counts: Sequence[int]) -> None:
        """Renew the full-batch class gradients that ``Rescale`` projects on (Alg. 5); ``order`` is grouped by class."""
        assert self._grads is not None

        def run(examples: Tensor) -> None:
            refresh_by_class(self._grads, self._quiet, examples, counts, self._chunk)  # type: ignore[arg-type]

        if self._refreshes is not None:
            try:
                self._refreshes("refresh", run, order)
                return
            except Unrecordable as error:
                self._give_up(error)
        run(order)

    def _give_up(self, error: Unrecordable) -> None:
        warnings.warn(f"{error} It is run operation by operation instead.", stacklevel=4)
        self.close()

    def _layout(self, indices: Tensor) -> ClassLayout | None:
        """Lay the classes of a batch out before it is recorded, since that waits for the device.

        Batches that are alike but not recorded are laid out so as well, and have the bits of those that are.
        """
        if self._grads is None or self._by_class:
            return None
        if len(indices) not in self._layouts:
            layout = class_layout(self._labels[indices], self._grads.classes)
            layout.prepare()
            self._layouts[len(indices)] = layout
        return self._layouts[len(indices)]

    def _run(self, indices: Tensor, layout: ClassLayout | None = None, lazy: bool | None = None) -> Seen:
        for p in self._parameters:
            p.grad = None
        with self._within():
            seen = self._plain(indices) if self._grads is None else self._weighted(self._grads, indices, layout, lazy)
        if self._update is not None:
            self._update()
        return seen, [p.grad for p in self._parameters]

    def _plain(self, indices: Tensor) -> PlainStep:
        """Write the gradient of the batch's mean loss, as anyone would."""
        parts = [self._plain_part(part, len(part) / len(indices)) for part in chunks(indices, self._chunk)]
        if len(parts) == 1:
            return parts[0]
        losses, logits, labels = zip(*parts, strict=True)
        return PlainStep(torch.stack(losses).sum(), torch.cat(logits), torch.cat(labels))

    def _plain_part(self, indices: Tensor, share: float) -> PlainStep:
        logits, y = self._logits(indices)
        loss = F.cross_entropy(logits, y)
        if share < 1:
            loss = loss * share
        loss.backward()  # type: ignore[no-untyped-call]
        return PlainStep(loss.detach(), logits.detach(), y)

    def _weighted(self, grads: ClassGradients, indices: Tensor, layout: ClassLayout | None, lazy: bool | None) -> Step:
        """Write Σ_l w_l g_l; a batch of more than a chunk streams class by class."""
        if self._by_class:
            assert self._counts is not None
            return step_by_class(grads, self._losses, indices, self._counts, self._chunk)
        if layout is not None:
            return step_laid_out(grads, self._losses, indices, layout, lazy)
        chunk = self._chunk if len(indices) > self._chunk else None
        return grads.backward_through(lambda part, _: self._losses(part), indices, self._labels[indices], chunk=chunk)

    def _losses(self, indices: Tensor) -> Tensor:
        logits, y = self._logits(indices)
        return F.cross_entropy(logits, y, reduction="none")

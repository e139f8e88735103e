"""The batches of an algorithm: the samplers by name, and the whole set as one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor

from classgrad._errors import InputError
from classgrad.sampling import BalancedBatches, ProportionalBatches, ShuffledBatches


class Sampler(Protocol):
    """What the loop asks of a source of batches."""

    @property
    def epoch(self) -> int:
        """The epoch of the latest batch."""
        ...

    def tensors(self, device: torch.device | str | None = None) -> Iterator[Tensor]:
        """Yield the index batches of one epoch, each grouped by class in ascending order."""
        ...

    def state_dict(self) -> dict[str, int]:
        """Give the place in the sequence."""
        ...

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go to a place in the sequence."""
        ...


class FullBatch:
    """The whole training set, class by class, as the one batch of every epoch."""

    def __init__(self, labels: Tensor) -> None:
        self._order = labels.argsort(stable=True)
        self.epoch = -1

    def tensors(self, device: torch.device | str | None = None) -> Iterator[Tensor]:
        """Yield all indices once."""
        self.epoch += 1
        self._order = self._order.to(device)  # stays there
        yield self._order

    def state_dict(self) -> dict[str, int]:
        """Give the number of the latest pass."""
        return {"epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on after a pass."""
        self.epoch = state["epoch"]


Make = Callable[[Tensor, int, torch.Generator], Sampler]


def _balanced(labels: Tensor, size: int, generator: torch.Generator) -> Sampler:
    counts = labels.bincount()
    most = int((counts > 0).sum() * counts.max())
    if size > most:
        raise InputError(
            f"Parameter `batch_size` should be at most {most} for balanced batches of this data: a larger one repeats "
            f"examples of every class. Found {size}."
        )
    return BalancedBatches(labels, batch_size=size, generator=generator)


SAMPLERS: dict[str, Make] = {
    "full": lambda labels, size, generator: FullBatch(labels),
    "shuffled": lambda labels, size, generator: ShuffledBatches(labels, size, generator=generator),
    "proportional": lambda labels, size, generator: ProportionalBatches(labels, size, generator=generator),
    "balanced": _balanced,
}
"""The sampler that goes with each kind of batches."""


def composition(sampler: Sampler, labels: Tensor, classes: int) -> tuple[int, ...] | None:
    """Give the number of examples of each class in every batch, if it is always the same."""
    if isinstance(sampler, FullBatch):
        return tuple(torch.bincount(labels, minlength=classes).tolist())
    if not isinstance(sampler, (ProportionalBatches, BalancedBatches)):
        return None
    counts = dict(zip(sampler.classes, sampler.counts, strict=True))
    return tuple(counts.get(label, 0) for label in range(classes))


def forever(sampler: Sampler, device: torch.device) -> Iterator[Tensor]:
    """Epoch after epoch of index batches on ``device``."""
    while True:
        yield from sampler.tensors(device)

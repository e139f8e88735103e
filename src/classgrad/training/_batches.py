"""The batches of an algorithm: the samplers by name, and the whole set as one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor

from classgrad.sampling import BalancedBatches, ProportionalBatches, ShuffledBatches


class Sampler(Protocol):
    """What the loop asks of a source of batches."""

    @property
    def epoch(self) -> int:
        """The epoch of the latest batch."""
        ...

    def tensors(self, device: torch.device | str | None = None) -> Iterator[Tensor]:
        """Yield the index batches of one epoch."""
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
        yield self._order.to(device)

    def state_dict(self) -> dict[str, int]:
        """Give the number of the latest pass."""
        return {"epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on after a pass."""
        self.epoch = state["epoch"]


Make = Callable[[Tensor, int, torch.Generator], Sampler]

SAMPLERS: dict[str, Make] = {
    "full": lambda labels, size, generator: FullBatch(labels),
    "shuffled": lambda labels, size, generator: ShuffledBatches(labels, size, generator=generator),
    "proportional": lambda labels, size, generator: ProportionalBatches(labels, size, generator=generator),
    "balanced": lambda labels, size, generator: BalancedBatches(labels, batch_size=size, generator=generator),
}
"""The sampler that goes with each kind of batches."""


def forever(sampler: Sampler, device: torch.device) -> Iterator[Tensor]:
    """Epoch after epoch of index batches on ``device``."""
    while True:
        yield from sampler.tensors(device)

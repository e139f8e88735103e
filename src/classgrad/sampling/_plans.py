"""What every batch of every epoch holds, as a function of its number."""

from collections.abc import Sequence
from math import ceil
from typing import Protocol

import torch
from torch import Tensor

from classgrad.sampling._groups import Groups
from classgrad.sampling._streams import Stream

# Examples laid out at once: 2 MiB of indices, or what makes the loop over very many classes cheap; but not many more
# batches than an epoch has, so that small data is ready at once.
_CHUNK = 2**18
_CHUNK_PER_CLASS = 128
_SPARE_BATCHES = 64


class Plan(Protocol):
    """The batches of a sampler: pure functions of the key, the epoch and the batch's place in it."""

    batch_size: int
    smallest: int  # the size of the smallest batch
    length: int  # batches in an epoch
    recipe: tuple[int, ...]  # the numbers that, beside the labels, decide what the batches hold

    def chunk(self, key: int, epoch: int, first: int) -> Tensor:
        """Give the batches of `epoch` from number `first` on, one per row; as many as are convenient, at least one."""
        ...


class Composed:
    """Batches with fixed numbers of every class, taken from one stream per class.

    The streams run on from epoch to epoch: what one epoch leaves over opens the next.
    """

    def __init__(self, groups: Groups, counts: Sequence[int], length: int) -> None:
        self.counts = self.recipe = tuple(counts)
        self.batch_size = self.smallest = sum(counts)
        self.length = length
        fitting = max(_CHUNK, _CHUNK_PER_CLASS * len(counts)) // self.batch_size
        self._rows = max(1, min(fitting, length + _SPARE_BATCHES))
        blocks = torch.split(groups.members, list(groups.sizes))
        self._streams = [
            (Stream(block, number, ceil(self._rows * count / len(block))), count)
            for number, (block, count) in enumerate(zip(blocks, counts, strict=True))
            if count
        ]
        self._at: tuple[int, int] | None = None
        self._chunk = torch.empty(0)

    def chunk(self, key: int, epoch: int, first: int) -> Tensor:
        """Give the rows from this batch to the end of its chunk; chunks do not mind the ends of epochs."""
        number, row = divmod(epoch * self.length + first, self._rows)
        if self._at != (key, number):
            self._chunk = self._layout(key, number * self._rows)
            self._at = (key, number)
        return self._chunk[row:]

    def _layout(self, key: int, batch: int) -> Tensor:
        stop = batch + self._rows
        columns = [s.read(key, batch * count, stop * count).view(-1, count) for s, count in self._streams]
        return torch.cat(columns, dim=1)


class Shuffled:
    """Batches cut from one new random order of all examples per epoch, each sorted by class."""

    def __init__(self, groups: Groups, batch_size: int, drop_last: bool) -> None:
        self.batch_size = batch_size
        self._members = groups.members
        self._size = len(groups)
        self._full = self._size // batch_size
        self.length = self._full if drop_last else ceil(self._size / batch_size)
        self.smallest = batch_size if drop_last else self._size - (self.length - 1) * batch_size
        self.recipe: tuple[int, ...] = (batch_size, drop_last)
        self._places = Stream(range(self._size), 0, passes=1)
        self._rows = max(1, _CHUNK // batch_size)

    def chunk(self, key: int, epoch: int, first: int) -> Tensor:
        """Give some whole batches, or the partial one that ends the epoch."""
        rows = min(self._rows, self._full - first)
        start = first * self.batch_size
        stop = start + rows * self.batch_size if rows > 0 else self._size
        places = self._places.read(key, epoch * self._size + start, epoch * self._size + stop)
        # members are stored class by class, so sorting the places sorts the examples by class
        return self._members[places.view(max(rows, 1), -1).sort(dim=1).values]

"""Class gradients of many parameters side by side, so that many little operations become few."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from operator import mul

import torch
from torch import Tensor

_BLOCK = 2**15
"""Columns of the first block that holds more than one parameter; later ones hold as much as all before them."""

_GPU_BLOCK = 2**23
"""Elements of the first block on a GPU if that is more: each takes launches of its own, and memory there is at hand."""

_ALIGNMENT = 8
"""Elements to whose multiples a parameter starts on a GPU: matrix products are slow elsewhere."""


@dataclass
class Block:
    """A matrix with a row per class; parameters take columns from the left."""

    rows: Tensor
    used: int = 0

    def has_room(self, width: int, like: Tensor) -> bool:
        """Whether there are so many columns left for values of such a kind."""
        rows = self.rows
        return self.used + width <= rows.shape[1] and rows.dtype == like.dtype and rows.device == like.device

    def extend(self, width: int) -> Tensor:
        """Return the next columns, unfilled."""
        self.used += width
        return self.rows[:, self.used - width : self.used]

    def take_up(self, start: int, stop: int) -> None:
        """Have the columns from ``start`` to ``stop`` in use; those in between hold zeros."""
        if start > self.used:
            self.rows[:, self.used : start].zero_()
        self.used = stop

    def view(self, column: int, shape: torch.Size) -> Tensor:
        """Return the (L, *shape) class gradients of a parameter, from its first column on."""
        classes, columns = self.rows.shape
        return self.rows.as_strided((classes, *shape), (columns, *dense_strides(shape)), column)

    @property
    def filled(self) -> Tensor:
        """The columns in use."""
        return self.rows[:, : self.used]


class Sheet:
    """Blocks for the class gradients of up to ``columns`` elements in all."""

    def __init__(self, classes: int, columns: int) -> None:
        self.size = (classes, columns)
        self._classes = classes
        self._left = columns
        self._placed = 0
        self._open: dict[object, Block] = {}
        self.next: Tensor | None = None
        """The matrix of the block that is opened next, if that is known."""

    def place(self, shape: torch.Size, like: Tensor) -> tuple[Tensor, Block, int]:
        """Return an unfilled (L, *shape) view for a parameter's class gradients, its block and its first column."""
        size = shape.numel()
        key = (like.dtype, like.device)
        block = self._open.get(key)
        start = 0 if block is None else self._start(block)
        if block is None or start + size > block.rows.shape[1]:
            least = max(_BLOCK, _GPU_BLOCK // self._classes) if like.is_cuda else _BLOCK
            columns = max(size, min(self._left, max(least, self._placed)))
            block = Block(like.new_empty(self._classes, columns) if self.next is None else self.next)
            self.next = None
            self._open[key] = block
            start = 0
        block.take_up(start, start + size)
        self._left -= size
        self._placed += size
        return block.view(start, shape), block, start

    def skip(self, shape: torch.Size) -> None:
        """Note that a parameter's class gradients will not come: no room need be held for them."""
        self._left -= shape.numel()

    def open(self, like: Tensor) -> Block | None:
        """Return the block that values of such a kind go to while there is room on it."""
        return self._open.get((like.dtype, like.device))

    @property
    def state(self) -> tuple[int, int]:
        """What decides, beside the open block, where the next parameter goes."""
        return self._left, self._placed

    def go_on(self, state: tuple[int, int], block: Block | None) -> None:
        """Be as if the parameters had been placed that lead to this state and this open block."""
        self._left, self._placed = state
        if block is not None:
            self._open[(block.rows.dtype, block.rows.device)] = block

    def _start(self, block: Block) -> int:
        return aligned(block.used) if block.rows.is_cuda else block.used


def aligned(columns: int) -> int:
    """Return the next column at which a parameter may start on a GPU."""
    return -(-columns // _ALIGNMENT) * _ALIGNMENT


@lru_cache
def dense_strides(shape: torch.Size) -> tuple[int, ...]:
    """Return the steps of the dimensions of a contiguous tensor.

    >>> dense_strides(torch.Size((4, 3, 2)))
    (6, 2, 1)
    """
    return tuple(accumulate(reversed(shape[1:]), mul, initial=1))[::-1] if shape else ()

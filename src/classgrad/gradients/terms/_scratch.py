"""Places to work in, and how much of them a piece of a step needs."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_VIEWS = 256
"""Shapes under which a place to work in is remembered."""
_ALIGNMENT = 512
"""Bytes to whose multiples places start, as those of torch's allocator do."""
_SMALL = 2**20
"""Bytes up to which torch's allocator gives out places among small ones, where anything may come in between."""


def is_small(values: Tensor) -> bool:
    """Whether values are not to be expected where they lay before; copying them takes next to no time."""
    return values.untyped_storage().nbytes() <= _SMALL


def small_memory(device: torch.device) -> Tensor:
    """Return memory for anything that is small."""
    return torch.empty(-(-_SMALL // 16) * 16, dtype=torch.uint8, device=device)


class Scratch:
    """Places to work in, kept from step to step: a CPU takes longer to hand out fresh memory than to fill it."""

    def __init__(self) -> None:
        self._places: dict[object, Tensor] = {}
        self._views: dict[object, dict[tuple[int, ...], Tensor]] = {}

    def place(self, use: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Return an unfilled tensor that is good until the same use asks again."""
        if like.device.type != "cpu":
            return like.new_empty(shape)
        key = (use, like.dtype)
        views = self._views.setdefault(key, {})
        view = views.get(shape)
        if view is None:
            size = math.prod(shape)
            if key not in self._places or self._places[key].shape[0] < size:
                self._places[key] = like.new_empty(size)
                views.clear()
            if len(views) >= _VIEWS:
                views.clear()
            view = views[shape] = self._places[key][:size].view(shape)
        return view

    def fresh(self, use: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Return an unfilled tensor that is good for the whole step."""
        return like.new_empty(shape)

    def gathered(self, use: str, values: Tensor, order: Tensor) -> Tensor:
        """Return the examples (first dimension) at the positions ``order``, good until the same use asks again."""
        place = self.place(use, (order.shape[0], *values.shape[1:]), values)
        return torch.index_select(values, 0, order, out=place)

    def contiguous(self, use: str, values: Tensor) -> Tensor:
        """Return values that lie one after the other, good until the same use asks again."""
        return values if values.is_contiguous() else self.place(use, values.shape, values).copy_(values)


class Needs:
    """The bytes that the uses of a piece of a step take."""

    def __init__(self) -> None:
        self.sizes: dict[object, int] = {}
        self._kept: Tensor | None = None

    def note(self, use: object, size: int) -> None:
        """Have a use take so many bytes at least."""
        if size > self.sizes.get(use, 0):
            self.sizes[use] = size
            self._kept = None

    def memory(self, like: Tensor) -> Tensor | None:
        """Return memory for all uses, None if nothing is needed; if small it stays from step to step."""
        total = sum(self.sizes.values())
        if not total or self._kept is not None:
            return self._kept
        memory = torch.empty(total, dtype=torch.uint8, device=like.device)
        if is_small(memory):
            self._kept = memory
        return memory


class Area(Scratch):
    """Places in memory of the step, one for each use that was known before; others are noted and come by themselves.

    A recording works in it, and holds no memory for its work. Small places for work come by themselves as well: those
    recordings have in common.
    """

    def __init__(self, needs: Needs, memory: Tensor | None) -> None:
        super().__init__()
        self.complete = True
        """Whether all was known so far."""
        self._needs = needs
        self._memory = memory
        self._spans: dict[object, tuple[int, int]] = {}
        self._typed: dict[torch.dtype, Tensor] = {}
        self._asked: dict[str, int] = {}
        start = 0
        for use, size in needs.sizes.items() if memory is not None else ():
            self._spans[use] = (start, size)
            start += size

    def place(self, use: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Return an unfilled tensor that is good until the same use asks again."""
        elements = math.prod(shape)
        if elements * like.element_size() <= _SMALL:
            return like.new_empty(shape)
        return self._flat(use, elements, like).view(shape)

    def fresh(self, use: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Return an unfilled tensor that is good for the whole step."""
        return self._next(use, math.prod(shape), like).view(shape)

    def fresh_like(self, use: str, like: Tensor) -> Tensor:
        """Return an unfilled tensor that lies in memory as another does, likewise."""
        last = sum([(size - 1) * step for size, step in zip(like.shape, like.stride(), strict=True)])
        elements = last + 1 if like.numel() else 0
        return self._next(use, elements, like).as_strided(like.shape, like.stride())

    def _next(self, use: str, elements: int, like: Tensor) -> Tensor:
        number = self._asked[use] = self._asked.get(use, 0) + 1
        return self._flat((use, number), elements, like)

    def _flat(self, use: object, elements: int, like: Tensor) -> Tensor:
        size = -(-elements * like.element_size() // _ALIGNMENT) * _ALIGNMENT
        if not size:
            return like.new_empty(0)
        start, room = self._spans.get(use, (0, 0))
        if size > room:
            self.complete = False
            self._needs.note(use, size)
            return like.new_empty(elements)
        typed = self._typed.get(like.dtype)
        if typed is None:
            assert self._memory is not None
            typed = self._typed[like.dtype] = self._memory.view(like.dtype)
        return typed.as_strided((elements,), (1,), start // like.element_size())

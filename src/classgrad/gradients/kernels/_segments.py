"""Classes as segments of rows, cut into chunks that programs work on.

Class l holds rows offset_l … offset_{l+1}, cut into chunks of at most S rows. Chunk c of class l has the slot
⌊offset_l / S⌋ + l + c: slots never meet, there are at most ⌊rows / S⌋ + L of them, and a program finds the
chunk of its slot by counting, so that no table goes to the device. Where all classes have equally many chunks the slot
is simply l · chunks + c. Sums over a class are made chunk by chunk, then over the chunks in their order.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator"

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeVar

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from classgrad.gradients._memo import MakeUp
from classgrad.gradients.kernels._launch import KEPT, Launch, cdiv, launched, next_power_of_2

T = TypeVar("T")


class Chunks(NamedTuple):
    """How the rows of all classes are cut: ``uniform`` chunks per class, or 0 where their number differs."""

    rows_per_example: int
    size: int
    slots: int
    uniform: int

    @property
    def whole(self) -> bool:
        """Whether every class is one chunk, so that slots are classes."""
        return self.uniform == 1


class Segments:
    """The numbers of examples of the classes, on the host and, as offsets (L + 1, int32), on the device."""

    def __init__(
        self, sizes: MakeUp | Sequence[int], device: torch.device | str, offsets: Tensor | None = None
    ) -> None:
        self._make_up = sizes if isinstance(sizes, MakeUp) else MakeUp(np.array(sizes, np.int64))
        if offsets is None:
            offsets = torch.tensor(self._make_up.ends, dtype=torch.int32, device=device)
        self.offsets = offsets
        self.examples = self._make_up.examples
        self.largest = self._make_up.largest
        """The most examples of a class."""

    def __len__(self) -> int:
        return len(self._make_up)

    def settled(self, make: Callable[..., T], *shape: Hashable) -> T:
        """Return ``make(self, *shape)``, which depends on nothing but the sizes and the shape, as found before."""
        return self._make_up.memo.recall((make, *shape), make, self, *shape)

    def cut(self, rows_per_example: int, size: int) -> Chunks:
        """Cut the classes into chunks of at most ``size`` rows."""
        most = -(-self.largest * rows_per_example // size)
        if most <= 1:
            return Chunks(rows_per_example, size, len(self), 1)
        if self._make_up.equal is not None:
            return Chunks(rows_per_example, size, len(self) * most, most)
        return Chunks(rows_per_example, size, self.examples * rows_per_example // size + len(self), 0)


@lru_cache(KEPT)
def one_segment(examples: int, device: torch.device) -> Segments:
    """Return a whole batch as one segment, the same whenever it is asked for: a recording cannot make it."""
    return Segments([examples], device)


@triton.jit
def locate(slot, offsets, classes, rows, uniform, chunk, UNIFORM: tl.constexpr, CLASSES: tl.constexpr):
    """Return the class of a slot and the first and last row of its chunk; none are left where stop <= start."""
    if UNIFORM:
        owner = slot // uniform
        first = owner * uniform
    else:
        k = tl.arange(0, CLASSES)
        begins = tl.load(offsets + k, mask=k < classes, other=0) * rows // chunk + k
        owner = tl.sum(((begins <= slot) & (k < classes)).to(tl.int32), 0) - 1
        first = tl.load(offsets + owner) * rows // chunk + owner
    start = tl.load(offsets + owner) * rows + (slot - first) * chunk
    stop = tl.minimum(start + chunk, tl.load(offsets + owner + 1) * rows)
    return owner, start, stop


@triton.jit
def slots_of(owner, offsets, rows, uniform, chunk, UNIFORM: tl.constexpr):
    """Return the first slot of a class and the number of its chunks."""
    start = tl.load(offsets + owner) * rows
    count = (tl.load(offsets + owner + 1) * rows - start + chunk - 1) // chunk
    first = owner * uniform if UNIFORM else start // chunk + owner
    return first, count


VARYING = ("classes", "uniform")
"""Arguments that change from batch to batch: a kernel is not compiled anew for their values."""


@launched(do_not_specialize=VARYING)
def _sum_slots(
    parts,
    out,
    offsets,
    width,
    out_stride,
    rows,
    uniform,
    chunk,
    area,
    UNIFORM: tl.constexpr,
    SQUARES: tl.constexpr,
    SLOTS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    owner = tl.program_id(0)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = column < width
    first, count = slots_of(owner, offsets, rows, uniform, chunk, UNIFORM)
    total = tl.zeros((SLOTS, WIDTH), tl.float32)
    for begin in range(0, count, SLOTS):
        slot = begin + tl.arange(0, SLOTS)
        place = (first + slot).to(tl.int64)[:, None] * width + column[None, :]
        total += tl.load(parts + place, mask=(slot < count)[:, None] & inside[None, :], other=0.0)
    sums = tl.sum(total, 0)
    if SQUARES:
        tl.store(out + owner * out_stride + tl.program_id(1), tl.sum(sums * sums, 0))
    else:
        inner = width // area  # parts are (area, inner), sums (inner, area)
        tl.store(out + owner.to(tl.int64) * out_stride + column % inner * area + column // inner, sums, mask=inside)


def sum_slots(parts: Tensor, segments: Segments, chunks: Chunks, out: Tensor | None = None, *, area: int = 1) -> Tensor:
    """Sum the chunks' parts (slots, W) by class, in the order of the chunks: (L, W).

    Parts laid out as (area, W / area) are transposed on the way.
    """
    if out is None:
        if chunks.whole:
            return parts
        out = parts.new_empty(len(segments), parts.shape[1])
    return _reduce(parts, segments, chunks, out, squares=False, area=area)


def square_slots(parts: Tensor, segments: Segments, chunks: Chunks) -> Tensor:
    """Return the squared norms of these sums without making them, in parts (L, B) that remain to be added."""
    blocks = cdiv(parts.shape[1], _width(segments, chunks)[1])
    return _reduce(parts, segments, chunks, parts.new_empty(len(segments), blocks), squares=True)


def _reduce(parts: Tensor, segments: Segments, chunks: Chunks, out: Tensor, squares: bool, area: int = 1) -> Tensor:
    launch = segments.settled(_reduction, chunks, parts.shape[1], out.stride(0), squares, area)
    launch(parts, out, segments.offsets)
    return out


def _reduction(segments: Segments, chunks: Chunks, width: int, out_stride: int, squares: bool, area: int) -> Launch:
    slots, block = _width(segments, chunks)
    launch: Launch = _sum_slots.settle(
        (len(segments), cdiv(width, block)),
        width=width,
        out_stride=out_stride,
        rows=chunks.rows_per_example,
        uniform=chunks.uniform,
        chunk=chunks.size,
        area=area,
        UNIFORM=chunks.uniform > 0,
        SQUARES=squares,
        SLOTS=slots,
        WIDTH=block,
        num_warps=4,
    )
    return launch


def _width(segments: Segments, chunks: Chunks) -> tuple[int, int]:
    """Return how many slots and columns a program adds at a time."""
    most = -(-segments.largest * chunks.rows_per_example // chunks.size)
    slots = max(1, min(64, next_power_of_2(most)))
    return slots, max(32, 1024 // slots)


def location(segments: Segments, chunks: Chunks) -> dict[str, object]:
    """Return the arguments of `locate` beside the slot and the offsets."""
    return {
        "classes": len(segments),
        "rows": chunks.rows_per_example,
        "uniform": chunks.uniform,
        "chunk": chunks.size,
        "UNIFORM": chunks.uniform > 0,
        "CLASSES": 1 if chunks.uniform else next_power_of_2(len(segments)),
    }

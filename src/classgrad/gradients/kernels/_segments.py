"""Classes as segments of rows, cut into chunks that programs work on.

Class l holds rows offset_l … offset_{l+1}, cut into chunks of at most CHUNK rows. Chunk c of class l has the slot
⌊offset_l / CHUNK⌋ + l + c: slots never meet, there are at most ⌊rows / CHUNK⌋ + L of them, and a program finds the
chunk of its slot by counting, so that no table goes to the device. Where all classes have equally many chunks the slot
is simply l · chunks + c. Sums over a class are made chunk by chunk, then over the chunks in their order.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator"

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch
import triton
import triton.language as tl
from torch import Tensor


@dataclass(frozen=True)
class Chunks:
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

    def __init__(self, sizes: Sequence[int], device: torch.device | str, offsets: Tensor | None = None) -> None:
        self.sizes = list(sizes)
        bounds = [0, *accumulate(self.sizes)]
        self.offsets = torch.tensor(bounds, dtype=torch.int32, device=device) if offsets is None else offsets
        self.examples = bounds[-1]

    def __len__(self) -> int:
        return len(self.sizes)

    @cached_property
    def largest(self) -> int:
        """The most examples of a class."""
        return max(self.sizes, default=0)

    def cut(self, rows_per_example: int, size: int) -> Chunks:
        """Cut the classes into chunks of at most ``size`` rows."""
        most = -(-self.largest * rows_per_example // size)
        if most <= 1:
            return Chunks(rows_per_example, size, len(self), 1)
        if min(self.sizes) == self.largest:
            return Chunks(rows_per_example, size, len(self) * most, most)
        return Chunks(rows_per_example, size, self.examples * rows_per_example // size + len(self), 0)


@triton.jit
def locate(slot, offsets, classes, rows, uniform, CHUNK: tl.constexpr, UNIFORM: tl.constexpr, CLASSES: tl.constexpr):
    """Return the class of a slot and the first and last row of its chunk; none are left where stop <= start."""
    if UNIFORM:
        owner = slot // uniform
        first = owner * uniform
    else:
        k = tl.arange(0, CLASSES)
        begins = tl.load(offsets + k, mask=k < classes, other=0) * rows // CHUNK + k
        owner = tl.sum(((begins <= slot) & (k < classes)).to(tl.int32), 0) - 1
        first = tl.load(offsets + owner) * rows // CHUNK + owner
    start = tl.load(offsets + owner) * rows + (slot - first) * CHUNK
    stop = tl.minimum(start + CHUNK, tl.load(offsets + owner + 1) * rows)
    return owner, start, stop


@triton.jit
def slots_of(owner, offsets, rows, uniform, CHUNK: tl.constexpr, UNIFORM: tl.constexpr):
    """Return the first slot of a class and the number of its chunks."""
    start = tl.load(offsets + owner) * rows
    count = (tl.load(offsets + owner + 1) * rows - start + CHUNK - 1) // CHUNK
    first = owner * uniform if UNIFORM else start // CHUNK + owner
    return first, count


@triton.jit
def _sum_slots(
    parts,
    out,
    offsets,
    width,
    out_stride,
    rows,
    uniform,
    CHUNK: tl.constexpr,
    UNIFORM: tl.constexpr,
    SLOTS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    owner = tl.program_id(0)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = column < width
    first, count = slots_of(owner, offsets, rows, uniform, CHUNK, UNIFORM)
    total = tl.zeros((SLOTS, WIDTH), tl.float32)
    for begin in range(0, count, SLOTS):
        slot = begin + tl.arange(0, SLOTS)
        place = (first + slot).to(tl.int64)[:, None] * width + column[None, :]
        total += tl.load(parts + place, mask=(slot < count)[:, None] & inside[None, :], other=0.0)
    tl.store(out + owner.to(tl.int64) * out_stride + column, tl.sum(total, 0), mask=inside)


def sum_slots(parts: Tensor, segments: Segments, chunks: Chunks, out: Tensor | None = None) -> Tensor:
    """Sum the chunks' parts (slots, W) by class, in the order of the chunks: (L, W)."""
    width = parts.shape[1]
    if out is None:
        if chunks.whole:
            return parts
        out = parts.new_empty(len(segments), width)
    most = -(-segments.largest * chunks.rows_per_example // chunks.size)
    slots = max(1, min(64, triton.next_power_of_2(most)))
    block = 32 if slots > 8 else 128
    _sum_slots[(len(segments), triton.cdiv(width, block))](
        parts,
        out,
        segments.offsets,
        width,
        out.stride(0),
        chunks.rows_per_example,
        chunks.uniform,
        CHUNK=chunks.size,
        UNIFORM=chunks.uniform > 0,
        SLOTS=slots,
        WIDTH=block,
        num_warps=4,
    )
    return out


def location(segments: Segments, chunks: Chunks) -> dict[str, object]:
    """Return the arguments of `locate` beside the slot."""
    return {
        "offsets": segments.offsets,
        "classes": len(segments),
        "rows": chunks.rows_per_example,
        "uniform": chunks.uniform,
        "CHUNK": chunks.size,
        "UNIFORM": chunks.uniform > 0,
        "CLASSES": triton.next_power_of_2(len(segments)),
    }

"""Class gradients of weights, Σ_{rows of class l} bᵀ a, as matrix products that gather their operands.

A convolution's weight gradient is a product over the rows (example, output position) whose left side is the output
gradient and whose right side is the input, seen through the kernel's windows; these are gathered while the product is
made and never laid out in memory. A linear layer is a convolution of one tap over rows that lie one after the other.
A program makes one tile of the gradient from one chunk of a class's rows. Where classes are whole chunks it writes the
gradient itself (or only its sum of squares); else the chunks' tiles go to a workspace and are added in their order.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import triton.language as tl
from torch import Tensor

from classgrad.gradients.kernels import Weighed
from classgrad.gradients.kernels._combination import sum_parts
from classgrad.gradients.kernels._launch import Launch, Place, cdiv, launched
from classgrad.gradients.kernels._segments import (
    VARYING,
    Chunks,
    Segments,
    locate,
    location,
    square_slots,
    sum_slots,
)

_PROGRAMS = 264
"""Programs to make at least, if rows are many: two for each multiprocessor of a large GPU."""


@launched(do_not_specialize=VARYING)
def _products(
    a,
    b,
    out,
    order,
    weights,
    owners,
    outer,
    channels,
    height,
    width,
    a_n,
    a_c,
    a_h,
    a_w,
    b_n,
    b_o,
    b_p,
    kernel_h,
    kernel_w,
    stride_h,
    stride_w,
    padding_h,
    padding_w,
    dilation_h,
    dilation_w,
    out_stride,
    offsets,
    classes,
    rows,
    uniform,
    chunk,
    UNIFORM: tl.constexpr,
    CLASSES: tl.constexpr,
    POSITIONS: tl.constexpr,
    LINE: tl.constexpr,
    TAPS: tl.constexpr,
    FIRST: tl.constexpr,
    PADDED: tl.constexpr,
    ORDERED: tl.constexpr,
    WEIGHED: tl.constexpr,
    NORMS: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """Columns are channels at one tap that the program is given (TAPS), or all pairs of channel and tap.

    The gradient is written as (tap, outer, channel) if FIRST, else as torch has it, (outer, channel, tap). If ORDERED
    the examples are not grouped by class and ``order`` says where those of the classes are. If WEIGHED each counts as
    often as the weight of its owner says, and is not read at all if that is 0: it may hold inf or NaN.
    """
    area = kernel_h * kernel_w
    columns = channels if TAPS else channels * area
    tiles_n = tl.cdiv(columns, BN)
    taps = area if TAPS else 1
    tiles = tl.cdiv(outer, BM) * tiles_n * taps
    slot = tl.program_id(0) // tiles
    tile = tl.program_id(0) % tiles
    _, start, stop = locate(slot, offsets, classes, rows, uniform, chunk, UNIFORM, CLASSES)
    m = tile // (tiles_n * taps) * BM + tl.arange(0, BM)
    n = tile // taps % tiles_n * BN + tl.arange(0, BN)
    m_inside = m < outer
    n_inside = n < columns
    if TAPS:
        tap = tile % taps
        channel = n
    elif FIRST:
        tap = n // channels
        channel = n % channels
    else:
        tap = n % area
        channel = n // area
    down = tap // kernel_w * dilation_h - padding_h
    right = tap % kernel_w * dilation_w - padding_w
    a_columns = channel * a_c + (down * a_h + right * a_w)
    b_rows = m * b_o
    total = tl.zeros((BM, BN), tl.float32)
    for first in range(start, stop, BK):
        k = first + tl.arange(0, BK)
        here = k < stop
        example = k // POSITIONS
        p = k % POSITIONS
        y = p // LINE * stride_h
        x = p % LINE * stride_w
        if ORDERED:
            example = tl.load(order + example, mask=here, other=0).to(tl.int32)
        if WEIGHED:
            weight = tl.load(weights + tl.load(owners + example, mask=here, other=0), mask=here, other=0.0)
            here = weight != 0
        if WIDE:
            example = example.to(tl.int64)
        there = here[:, None] & n_inside[None, :]
        if PADDED:
            if TAPS:
                seen = (y + down >= 0) & (y + down < height) & (x + right >= 0) & (x + right < width)
                there = (here & seen)[:, None] & n_inside[None, :]
            else:
                row, column = y[:, None] + down[None, :], x[:, None] + right[None, :]
                there = there & (row >= 0) & (row < height) & (column >= 0) & (column < width)
        left = tl.load(
            b + (b_rows[:, None] + (example * b_n + p * b_p)[None, :]),
            mask=m_inside[:, None] & here[None, :],
            other=0.0,
        )
        if WEIGHED:
            left *= weight[None, :]
        window = tl.load(a + (a_columns[None, :] + (example * a_n + y * a_h + x * a_w)[:, None]), mask=there, other=0.0)
        total = tl.dot(left, window, total, input_precision=PRECISION)
    if NORMS:
        tl.store(out + slot * tiles + tile, tl.sum(tl.sum(total * total, 1), 0))
    else:
        if FIRST:
            place = m[:, None] * channels + (tap * (outer * channels) + channel)[None, :]
        else:
            place = m[:, None] * (channels * area) + (channel * area + tap)[None, :]
        tl.store(out + slot.to(tl.int64) * out_stride + place, total, mask=m_inside[:, None] & n_inside[None, :])


@dataclass(frozen=True)
class Blocks:
    """How a product is cut: tiles of ``m`` x ``n``, ``k`` rows at a time, one tap or all taps in a tile."""

    m: int
    n: int
    k: int
    taps: bool
    warps: int
    stages: int
    pad: bool = False
    """Whether the input is padded in memory first, which spares the gathering its tests for the border."""


class Settled(NamedTuple):
    """A product of which only the tensors are open."""

    launch: Launch
    chunks: Chunks
    target: tuple[int, int] | None
    """The shape of what the launch writes to, None if that is what is asked for."""
    norms: bool
    area: int

    def run(
        self,
        a: Tensor,
        b: Tensor,
        segments: Segments,
        out: Tensor | None,
        order: Tensor | None,
        weighed: Weighed | None,
        place: Place,
    ) -> Tensor:
        """Make the product, in ``out`` if it is given."""
        target = out if self.target is None else place("parts", self.target, b)
        assert target is not None
        self.launch(a, b, target, order, *(weighed or (None, None)), segments.offsets)
        if self.norms:
            return sum_parts(target if self.chunks.whole else square_slots(target, segments, self.chunks))
        return target if self.chunks.whole else sum_slots(target, segments, self.chunks, out, area=self.area)


@dataclass(frozen=True)
class Product:
    """The shape of a product, with what the kernel must know of the places of both sides in memory."""

    outer: int
    channels: int
    size: tuple[int, int]
    a_strides: tuple[int, ...]
    b_strides: tuple[int, ...]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    rows_per_example: int
    positions: int
    line: int
    wide: bool

    @property
    def area(self) -> int:
        return self.kernel[0] * self.kernel[1]

    def settle(
        self,
        segments: Segments,
        blocks: Blocks,
        precision: str,
        norms: bool,
        out_stride: int | None,
        ordered: bool = False,
        weighed: bool = False,
        taps_first: bool = True,
    ) -> Settled:
        columns = self.channels if blocks.taps else self.channels * self.area
        tiles = cdiv(self.outer, blocks.m) * cdiv(columns, blocks.n) * (self.area if blocks.taps else 1)
        chunks = segments.cut(self.rows_per_example, self._chunk(segments, tiles, blocks.k))
        size = self.outer * self.channels * self.area
        direct = chunks.whole
        # where channels are neighbours in memory, so they are in a tile, and what goes to the workspace is turned later
        first = taps_first or (not direct and (blocks.taps or self.a_strides[1] == 1))
        if direct:
            rows, columns = len(segments), tiles if norms else size
        else:
            rows, columns = chunks.slots, size
        given = direct and not norms and out_stride is not None
        numbers = (
            self.outer,
            self.channels,
            *self.size,
            *self.a_strides,
            *self.b_strides,
            *self.kernel,
            *self.stride,
            *self.padding,
            *self.dilation,
            out_stride if given else columns,
        )
        launch = _products.settle(
            (tiles * chunks.slots,),
            **dict(zip(_products.names[6:], numbers, strict=False)),
            **location(segments, chunks),
            POSITIONS=self.positions,
            LINE=self.line,
            TAPS=blocks.taps,
            FIRST=first,
            PADDED=any(self.padding),
            ORDERED=ordered,
            WEIGHED=weighed,
            NORMS=norms and direct,
            WIDE=self.wide,
            PRECISION=precision,
            BM=blocks.m,
            BN=blocks.n,
            BK=blocks.k,
            num_warps=blocks.warps,
            num_stages=blocks.stages,
        )
        area = self.area if first and not taps_first else 1
        return Settled(launch, chunks, None if given else (rows, columns), norms, area)

    def _chunk(self, segments: Segments, tiles: int, k: int) -> int:
        """Return how many rows of a class a program takes: all, unless too few programs would be busy."""
        wanted = cdiv(_PROGRAMS, tiles)
        rows = segments.examples * self.rows_per_example
        largest = segments.largest * self.rows_per_example
        chunk = max(4 * k, cdiv(cdiv(rows, wanted), 64) * 64)
        return max(1, largest) if largest <= chunk + chunk // 2 else chunk

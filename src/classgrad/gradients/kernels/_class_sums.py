"""Output gradients summed over positions and examples by class: the class gradients of biases."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator"

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from classgrad.gradients.kernels._launch import Launch, cdiv, launched, next_power_of_2
from classgrad.gradients.kernels._segments import VARYING, Chunks, Segments, locate, location, sum_slots


@launched(do_not_specialize=VARYING)
def _sum_rows(
    b,
    parts,
    order,
    width,
    row_stride,
    part_stride,
    offsets,
    classes,
    rows,
    uniform,
    chunk,
    UNIFORM: tl.constexpr,
    CLASSES: tl.constexpr,
    ORDERED: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Sum rows of channels that lie side by side, one row per position."""
    slot = tl.program_id(0)
    _, start, stop = locate(slot, offsets, classes, rows, uniform, chunk, UNIFORM, CLASSES)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = column < width
    total = tl.zeros((ROWS, WIDTH), tl.float32)
    for first in range(start, stop, ROWS):
        row = first + tl.arange(0, ROWS)
        there = row < stop
        source = row.to(tl.int64)
        if ORDERED:
            source = tl.load(order + row // rows, mask=there, other=0) * rows + row % rows
        place = source[:, None] * row_stride + column[None, :]
        total += tl.load(b + place, mask=there[:, None] & inside[None, :], other=0.0)
    tl.store(parts + slot.to(tl.int64) * part_stride + column, tl.sum(total, 0), mask=inside)


@launched(do_not_specialize=VARYING)
def _sum_positions(
    b,
    parts,
    width,
    positions,
    offsets,
    classes,
    rows,
    uniform,
    chunk,
    UNIFORM: tl.constexpr,
    CLASSES: tl.constexpr,
    WIDTH: tl.constexpr,
    POSITIONS: tl.constexpr,
):
    """Sum channels whose positions lie side by side; a chunk is a number of examples."""
    slot = tl.program_id(0)
    _, start, stop = locate(slot, offsets, classes, rows, uniform, chunk, UNIFORM, CLASSES)
    channel = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = channel < width
    total = tl.zeros((WIDTH, POSITIONS), tl.float32)
    for example in range(start, stop):
        base = (example * width + channel.to(tl.int64)) * positions
        for first in range(0, positions, POSITIONS):
            p = first + tl.arange(0, POSITIONS)
            there = inside[:, None] & (p < positions)[None, :]
            total += tl.load(b + base[:, None] + p[None, :], mask=there, other=0.0)
    tl.store(parts + slot.to(tl.int64) * width + channel, tl.sum(total, 1), mask=inside)


def class_row_sums(b: Tensor, segments: Segments, *, order: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """Sum ``b`` (N, T, O), grouped by class, over the examples and positions of each class: (L, O).

    Or ``order`` (N, int64) is what would bring it into class order. ``out`` (L, O) may be given to be written to; its
    rows may be further apart.
    """
    if out is None and order is None and b.shape[1] == segments.largest == 1 and len(b) == len(segments):
        return b[:, 0]
    if not b.shape[2]:
        return b.new_empty(len(segments), 0) if out is None else out
    if b.stride(2) != 1 or b.stride(0) != b.shape[1] * b.stride(1):
        b = b.contiguous()
    out_stride = b.shape[2] if out is None else out.stride(0)
    chunks, launch = segments.settled(_settle_rows, b.shape, b.stride(1), out_stride, order is not None)
    direct = out is not None and chunks.whole
    parts = out if direct and out is not None else b.new_empty(chunks.slots, b.shape[2])
    if parts.numel():
        launch(b, parts, order, segments.offsets)
    return parts if direct else sum_slots(parts, segments, chunks, out)


def _settle_rows(
    segments: Segments, shape: torch.Size, row_stride: int, out_stride: int, ordered: bool
) -> tuple[Chunks, Launch]:
    _, positions, width = shape
    columns = min(128, next_power_of_2(width))
    block = max(1, 2048 // columns)
    blocks = cdiv(width, columns)
    size = block
    while size < 16 * block and segments.examples * positions * blocks > 1024 * size:
        size *= 2
    chunks = segments.cut(positions, size)
    launch = _sum_rows.settle(
        (chunks.slots, blocks),
        width=width,
        row_stride=row_stride,
        part_stride=out_stride if chunks.whole else width,
        **location(segments, chunks),
        ORDERED=ordered,
        ROWS=block,
        WIDTH=columns,
        num_warps=4,
    )
    return chunks, launch


def class_channel_sums(b: Tensor, segments: Segments) -> Tensor:
    """Sum ``b`` (N, O, ...), grouped by class, over the examples and positions of each class: (L, O)."""
    if b.dim() > 2 and b.stride(1) == 1 and not b.is_contiguous():
        return class_row_sums(b.movedim(1, -1).flatten(1, -2), segments)
    if b.dim() == 2:
        return class_row_sums(b[:, None], segments)
    b = b.contiguous()
    chunks, launch = segments.settled(_settle_positions, b.shape)
    parts = b.new_empty(chunks.slots, b.shape[1])
    if parts.numel():
        launch(b, parts, segments.offsets)
    return sum_slots(parts, segments, chunks)


def _settle_positions(segments: Segments, shape: torch.Size) -> tuple[Chunks, Launch]:
    width, positions = shape[1], shape[2:].numel()
    columns = min(1024, next_power_of_2(positions))
    channels = min(next_power_of_2(width), max(1, 2048 // columns))
    blocks = cdiv(width, channels)
    size = 1
    while size < 16 and segments.examples * blocks > 1024 * size:
        size *= 2
    chunks = segments.cut(1, size)
    launch = _sum_positions.settle(
        (chunks.slots, blocks),
        width=width,
        positions=positions,
        **location(segments, chunks),
        WIDTH=channels,
        POSITIONS=columns,
        num_warps=max(1, min(4, channels * columns // 256)),
    )
    return chunks, launch

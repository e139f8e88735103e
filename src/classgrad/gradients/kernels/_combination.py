"""Examples weighed; of class gradients that lie as rows of a matrix (L, P) their weighted sum and squared norms."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator"

from __future__ import annotations

from functools import lru_cache

import torch
import triton.language as tl
from torch import Tensor

from classgrad.gradients.kernels._launch import KEPT, Launch, cdiv, launched, next_power_of_2

_PROGRAMS = 528
"""Programs that keep a large GPU busy."""
_LEAST_SHARE = 64
"""Classes that are worth a program of their own."""


@launched
def _weighted_sum(
    kept, weights, out, classes, share, width, row_stride, unit, CLASSES: tl.constexpr, WIDTH: tl.constexpr
):
    """Sum ``share`` of the classes in each program."""
    column = tl.program_id(0).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
    inside = column < width
    total = tl.zeros((WIDTH,), tl.float32)
    begin = tl.program_id(1) * share
    for first in range(begin, tl.minimum(begin + share, classes), CLASSES):
        row = first + tl.arange(0, CLASSES)
        w = tl.load(weights + row * unit, mask=row < classes, other=0.0)
        # a class of weight 0 is not read at all: it may hold inf or NaN
        values = tl.load(
            kept + row.to(tl.int64)[:, None] * row_stride + column[None, :],
            mask=(w != 0)[:, None] & inside[None, :],
            other=0.0,
        )
        total += tl.sum(w[:, None] * values, 0)
    tl.store(out + tl.program_id(1).to(tl.int64) * width + column, total, mask=inside)


@launched
def _square_sums(kept, parts, width, row_stride, blocks, WIDTH: tl.constexpr, REPEATS: tl.constexpr):
    owner = tl.program_id(1)
    block = tl.program_id(0)
    base = kept + owner.to(tl.int64) * row_stride
    total = tl.zeros((WIDTH,), tl.float32)
    for i in tl.static_range(REPEATS):
        column = (block * REPEATS + i).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
        values = tl.load(base + column, mask=column < width, other=0.0)
        total += values * values
    tl.store(parts + owner * blocks + block, tl.sum(total, 0))


@launched
def _sum_parts(parts, out, blocks, BLOCKS: tl.constexpr):
    owner = tl.program_id(0)
    total = tl.zeros((BLOCKS,), tl.float64)
    for first in range(0, blocks, BLOCKS):
        block = first + tl.arange(0, BLOCKS)
        total += tl.load(parts + owner * blocks + block, mask=block < blocks, other=0.0).to(tl.float64)
    tl.store(out + owner, tl.sum(total, 0).to(tl.float32))


@launched
def _weigh_examples(
    a,
    b,
    weights,
    owners,
    a_out,
    b_out,
    unit,
    a_width,
    a_size,
    a_blocks,
    b_width,
    b_size,
    WIDTH: tl.constexpr,
):
    """Take a block of ``a`` in the first programs, of ``b`` in the others."""
    block = tl.program_id(0)
    if block < a_blocks:
        place = block.to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
        inside = place < a_size
        weight = tl.load(weights + tl.load(owners + place // a_width, mask=inside, other=0) * unit)
        value = tl.load(a + place, mask=inside & (weight != 0), other=0.0)
        tl.store(a_out + place, value, mask=inside)
    else:
        place = (block - a_blocks).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
        inside = place < b_size
        weight = tl.load(weights + tl.load(owners + place // b_width, mask=inside, other=0) * unit)
        value = tl.load(b + place, mask=inside & (weight != 0), other=0.0)
        tl.store(b_out + place, value * weight, mask=inside)


def weigh_examples(a: Tensor, b: Tensor, weights: Tensor, owners: Tensor) -> tuple[Tensor, Tensor]:
    """Return the examples (first dimension) of ``a`` as they are and those of ``b`` times the weights of their owners.

    Examples of weight 0 are zero in both and not read at all: they may hold inf or NaN. ``a`` and ``b`` are contiguous
    or channels-last.
    """
    out = torch.empty_like(a), torch.empty_like(b)
    if len(owners):
        _settle_examples(len(owners), a.numel(), b.numel(), weights.stride(0))(a, b, weights, owners, *out)
    return out


@lru_cache(KEPT)
def _settle_examples(examples: int, a_size: int, b_size: int, unit: int) -> Launch:
    block = 1024
    a_blocks = cdiv(a_size, block)
    launch: Launch = _weigh_examples.settle(
        (max(1, a_blocks + cdiv(b_size, block)),),
        unit=unit,
        a_width=max(1, a_size // examples),
        a_size=a_size,
        a_blocks=a_blocks,
        b_width=max(1, b_size // examples),
        b_size=b_size,
        WIDTH=block,
        num_warps=4,
    )
    return launch


def weighted_sum(kept: Tensor, weights: Tensor, out: Tensor | None = None) -> Tensor:
    """Return Σ_l w_l kept_l (P) over the classes of a weight other than 0; rows may be further apart than P.

    Many classes of few columns are shared out over programs, whose sums are added in their order.
    """
    classes, width = kept.shape
    out = kept.new_empty(width) if out is None else out
    if not width:
        return out
    shares, launch = _settle_sum(classes, width, kept.stride(0), weights.stride(0))
    target = out if shares == 1 else kept.new_empty(shares, width)
    launch(kept, weights, target)
    return out if shares == 1 else torch.sum(target, 0, out=out)


@lru_cache(KEPT)
def _settle_sum(classes: int, width: int, row_stride: int, unit: int) -> tuple[int, Launch]:
    group = min(8, next_power_of_2(max(1, classes)))
    block = 512 if group > 4 else 1024
    columns = cdiv(width, block)
    share = max(_LEAST_SHARE, cdiv(cdiv(classes, max(1, _PROGRAMS // columns)), group) * group)
    shares = max(1, cdiv(classes, share))
    launch = _weighted_sum.settle(
        (columns, shares),
        classes=classes,
        share=share,
        width=width,
        row_stride=row_stride,
        unit=unit,
        CLASSES=group,
        WIDTH=block,
        num_warps=4,
    )
    return shares, launch


def row_square_norms(kept: Tensor) -> Tensor:
    """Return ‖kept_l‖² of the rows (L, P), summed in single precision within blocks and in double over them."""
    classes, width = kept.shape
    if not kept.numel():
        return kept.new_zeros(classes)
    blocks, launch = _settle_squares(classes, width, kept.stride(0))
    parts = kept.new_empty(classes, blocks)
    launch(kept, parts)
    return sum_parts(parts)


@lru_cache(KEPT)
def _settle_squares(classes: int, width: int, row_stride: int) -> tuple[int, Launch]:
    block, repeats = 2048, 4
    blocks = cdiv(width, block * repeats)
    grid = (blocks, classes)
    launch = _square_sums.settle(
        grid, width=width, row_stride=row_stride, blocks=blocks, WIDTH=block, REPEATS=repeats, num_warps=4
    )
    return blocks, launch


def sum_parts(parts: Tensor) -> Tensor:
    """Sum each row (L, B) in double precision: (L)."""
    classes, blocks = parts.shape
    out = parts.new_empty(classes)
    _settle_parts(classes, blocks)(parts, out)
    return out


@lru_cache(KEPT)
def _settle_parts(classes: int, blocks: int) -> Launch:
    warps = 4 if blocks > 64 else 1
    launch: Launch = _sum_parts.settle(
        (classes,), blocks=blocks, BLOCKS=min(1024, next_power_of_2(blocks)), num_warps=warps
    )
    return launch

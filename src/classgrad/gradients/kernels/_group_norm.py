"""The backward pass of group normalization, which gives every example's own parameter gradients on the way.

With x̂ = (x − mean) rstd, example n's gradients are Σ dy x̂ and Σ dy over the positions of each channel; dx needs exactly
these two sums. A program takes whole groups: it reads x and dy once, where torch's own pass reads them twice. Groups
too large for that are summed first and read again.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator"

from __future__ import annotations

from functools import lru_cache

import torch
import triton.language as tl
from torch import Tensor

from classgrad.gradients.kernels._launch import KEPT, Launch, cdiv, launched, next_power_of_2

_ELEMENTS = 32768
"""The most elements of x that a program holds."""
_TILE = 4096
"""Elements that a program is given if groups are small."""


@launched
def _whole_groups(
    dy,
    x,
    mean,
    rstd,
    weight,
    dx,
    weight_sums,
    bias_sums,
    total,
    CHANNELS: tl.constexpr,
    POSITIONS: tl.constexpr,
    STEP_C: tl.constexpr,
    STEP_P: tl.constexpr,
    GROUP: tl.constexpr,
    AFFINE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Rows are channels of examples, ROWS a multiple of GROUP, so a program has whole groups."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < total
    channel = row % CHANNELS
    p = tl.arange(0, COLUMNS)
    base = (row // CHANNELS).to(tl.int64) * (CHANNELS * POSITIONS) + channel * STEP_C
    place = base[:, None] + (p * STEP_P)[None, :]
    there = inside[:, None] & (p < POSITIONS)[None, :]
    g = tl.load(dy + place, mask=there, other=0.0)
    v = tl.load(x + place, mask=there, other=0.0)
    m = tl.load(mean + row // GROUP, mask=inside, other=0.0)
    r = tl.load(rstd + row // GROUP, mask=inside, other=0.0)
    v = (v - m[:, None]) * r[:, None]
    by_weight = tl.sum(g * v, 1)
    by_bias = tl.sum(g, 1)
    tl.store(weight_sums + row, by_weight, mask=inside)
    tl.store(bias_sums + row, by_bias, mask=inside)
    if AFFINE:
        gamma = tl.load(weight + channel, mask=inside, other=0.0)
        by_weight *= gamma
        by_bias *= gamma
        g *= gamma[:, None]
    scale = 1.0 / (GROUP * POSITIONS)
    along = tl.sum(tl.reshape(by_weight, (ROWS // GROUP, GROUP)), 1) * scale
    flat = tl.sum(tl.reshape(by_bias, (ROWS // GROUP, GROUP)), 1) * scale
    along = tl.reshape(tl.broadcast_to(along[:, None], (ROWS // GROUP, GROUP)), (ROWS,))
    flat = tl.reshape(tl.broadcast_to(flat[:, None], (ROWS // GROUP, GROUP)), (ROWS,))
    tl.store(dx + place, (g - flat[:, None] - v * along[:, None]) * r[:, None], mask=there)


@launched
def _sums(
    dy,
    x,
    mean,
    rstd,
    weight_sums,
    bias_sums,
    total,
    group,
    CHANNELS: tl.constexpr,
    POSITIONS: tl.constexpr,
    STEP_C: tl.constexpr,
    STEP_P: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < total
    base = (row // CHANNELS).to(tl.int64) * (CHANNELS * POSITIONS) + row % CHANNELS * STEP_C
    m = tl.load(mean + row // group, mask=inside, other=0.0)
    r = tl.load(rstd + row // group, mask=inside, other=0.0)
    by_weight = tl.zeros((ROWS, COLUMNS), tl.float32)
    by_bias = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, POSITIONS, COLUMNS):
        p = start + tl.arange(0, COLUMNS)
        there = inside[:, None] & (p < POSITIONS)[None, :]
        place = base[:, None] + (p * STEP_P)[None, :]
        g = tl.load(dy + place, mask=there, other=0.0)
        v = tl.load(x + place, mask=there, other=0.0)
        by_bias += g
        by_weight += g * ((v - m[:, None]) * r[:, None])
    tl.store(weight_sums + row, tl.sum(by_weight, 1), mask=inside)
    tl.store(bias_sums + row, tl.sum(by_bias, 1), mask=inside)


@launched
def _input_gradient(
    dy,
    x,
    mean,
    rstd,
    weight,
    along,
    flat,
    dx,
    total,
    group,
    CHANNELS: tl.constexpr,
    POSITIONS: tl.constexpr,
    STEP_C: tl.constexpr,
    STEP_P: tl.constexpr,
    AFFINE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < total
    channel = row % CHANNELS
    p = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    base = (row // CHANNELS).to(tl.int64) * (CHANNELS * POSITIONS) + channel * STEP_C
    place = base[:, None] + (p * STEP_P)[None, :]
    there = inside[:, None] & (p < POSITIONS)[None, :]
    g = tl.load(dy + place, mask=there, other=0.0)
    v = tl.load(x + place, mask=there, other=0.0)
    if AFFINE:
        g *= tl.load(weight + channel, mask=inside, other=0.0)[:, None]
    m = tl.load(mean + row // group, mask=inside, other=0.0)
    r = tl.load(rstd + row // group, mask=inside, other=0.0)
    a = tl.load(along + row // group, mask=inside, other=0.0)
    f = tl.load(flat + row // group, mask=inside, other=0.0)
    v = (v - m[:, None]) * r[:, None]
    tl.store(dx + place, (g - f[:, None] - v * a[:, None]) * r[:, None], mask=there)


def group_norm_backward(
    dy: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    groups: int,
    *,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return dx and every example's weight and bias gradient, (N, C) each.

    ``mean`` and ``rstd`` (N, groups) are as torch saves them. dx is written to ``out``, if that is given: it lies in
    memory as ``x`` does, contiguous or channels-last.
    """
    dy, x, shape = _laid_out(dy, x)
    dx = torch.empty_like(x) if out is None else out
    launch = _settle(len(x), *shape.values(), groups, weight is not None)
    if launch is None:
        return (dx, *_in_two_passes(dy, x, mean, rstd, weight, groups, dx, shape))
    weight_sums, bias_sums = x.new_empty(x.shape[:2]), x.new_empty(x.shape[:2])
    launch(dy, x, mean, rstd, weight, dx, weight_sums, bias_sums)
    return dx, weight_sums, bias_sums


@lru_cache(KEPT)
def _settle(
    examples: int, channels: int, positions: int, step_c: int, step_p: int, groups: int, affine: bool
) -> Launch | None:
    """Return the launch that takes whole groups, None if they are too large for that."""
    group = channels // groups
    total = examples * channels
    columns = next_power_of_2(positions)
    single = group & (group - 1) == 0 and group * columns <= _ELEMENTS
    if not single or not total:
        return None
    # neighbours in memory are channels where they come last: then a program needs some of them
    least = max(group, 16) if step_c == 1 and positions > 1 else group
    rows = max(group, min(least, _ELEMENTS // columns), _TILE // columns)
    while rows > least and rows * columns > 1024 and total < 512 * rows:  # a small batch should fill the device too
        rows //= 2
    launch: Launch = _whole_groups.settle(
        (cdiv(total, rows),),
        total=total,
        CHANNELS=channels,
        POSITIONS=positions,
        STEP_C=step_c,
        STEP_P=step_p,
        GROUP=group,
        AFFINE=affine,
        ROWS=rows,
        COLUMNS=columns,
        num_warps=max(1, min(32, rows * columns // 512)),
    )
    return launch


def group_norm_sums(dy: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """Return every example's weight and bias gradient, (N, C) each, without dx."""
    dy, x, shape = _laid_out(dy, x)
    weight_sums, bias_sums = x.new_empty(x.shape[:2]), x.new_empty(x.shape[:2])
    total = weight_sums.numel()
    rows, columns = _tile(shape)
    if total:
        _sums[(cdiv(total, rows),)](
            dy,
            x,
            mean,
            rstd,
            weight_sums,
            bias_sums,
            total,
            shape["CHANNELS"] // groups,
            **shape,
            ROWS=rows,
            COLUMNS=columns,
            num_warps=4,
        )
    return weight_sums, bias_sums


def _in_two_passes(
    dy: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    groups: int,
    dx: Tensor,
    shape: dict[str, int],
) -> tuple[Tensor, Tensor]:
    weight_sums, bias_sums = group_norm_sums(dy, x, mean, rstd, groups)
    channels, positions = shape["CHANNELS"], shape["POSITIONS"]
    group = channels // groups
    scale = 1.0 / (group * positions)
    gamma = scale if weight is None else weight * scale
    along, flat = ((sums * gamma).view(-1, group).sum(1) for sums in (weight_sums, bias_sums))
    rows, columns = _tile(shape)
    total = weight_sums.numel()
    if total:
        _input_gradient[(cdiv(total, rows), cdiv(positions, columns))](
            dy,
            x,
            mean,
            rstd,
            weight,
            along,
            flat,
            dx,
            total,
            group,
            **shape,
            AFFINE=weight is not None,
            ROWS=rows,
            COLUMNS=columns,
            num_warps=4,
        )
    return weight_sums, bias_sums


def _tile(shape: dict[str, int]) -> tuple[int, int]:
    """Return rows and columns of a program's tile of a loop over the positions."""
    columns = min(next_power_of_2(shape["POSITIONS"]), 64 if shape["STEP_C"] == 1 else 1024)
    return max(1, 2048 // columns), columns


def _laid_out(dy: Tensor, x: Tensor) -> tuple[Tensor, Tensor, dict[str, int]]:
    """Return both in one dense layout, channels last where x has them there, and the steps of its dimensions."""
    channels, positions = x.shape[1], x.shape[2:].numel()
    plain = x.is_contiguous()
    last = not plain and x.dim() in (4, 5) and x.is_contiguous(memory_format=_channels_last(x))
    if not (plain and dy.is_contiguous()):
        memory_format = _channels_last(x) if last else torch.contiguous_format
        x, dy = x.contiguous(memory_format=memory_format), dy.contiguous(memory_format=memory_format)
    step_c, step_p = (1, channels) if last else (positions, 1)
    return dy, x, {"CHANNELS": channels, "POSITIONS": positions, "STEP_C": step_c, "STEP_P": step_p}


def _channels_last(x: Tensor) -> torch.memory_format:
    return torch.channels_last if x.dim() == 4 else torch.channels_last_3d

"""The products that make the class gradients of convolutions and linear layers: their shapes, and how they are cut."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional as F

from classgrad.gradients.kernels import Weighed, lies_by_examples
from classgrad.gradients.kernels._launch import Place, cdiv, fresh, next_power_of_2
from classgrad.gradients.kernels._products import Blocks, Product, Settled
from classgrad.gradients.kernels._segments import Segments

_BUSY = 132
"""Programs below which tiles are made smaller."""


def conv_products(
    a: Tensor,
    b: Tensor,
    segments: Segments,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    *,
    precision: str = "tf32",
    norms: bool = False,
    out: Tensor | None = None,
    order: Tensor | None = None,
    weighed: Weighed | None = None,
    taps_first: bool = False,
    blocks: Blocks | None = None,
    place: Place = fresh,
) -> Tensor:
    """Return the classes' weight gradients of a two-dimensional convolution without groups, (L, O · C · kernel).

    ``a`` (N, C, H, W) and ``b`` (N, O, ...) are each contiguous or channels-last and grouped by class, or ``order``
    (N, int64) is what would bring them into class order: then they are gathered as they are read. ``weighed`` examples
    count as often as they weigh, those of weight 0 not at all, whatever they hold. With ``norms``
    return only the squared norms (L). ``out`` (L, ...) may be given to be written to; its rows may be further apart.
    ``precision`` is "tf32" or "ieee". Gradients come as (O, C, kernel), or with ``taps_first`` as (kernel, O, C), which
    is written faster, has the same norms and may be combined as well, to be transposed when only one is left. What is
    returned may lie in memory that ``place`` gave, unless ``out`` is given.
    """
    b = b if lies_by_examples(b) else b.contiguous()
    if blocks is not None and blocks.pad and any(padding):
        a, padding = F.pad(a, (padding[1], padding[1], padding[0], padding[0])), (0, 0)
    options = (tuple(kernel), tuple(stride), tuple(padding), tuple(dilation), precision, norms)
    gathered = (order is not None, weighed is not None)
    out_stride = None if out is None else out.stride(0)
    settled = segments.settled(
        _settle_conv, a.shape, a.stride(), b.shape, b.stride(), out_stride, *options, *gathered, taps_first, blocks
    )
    return settled.run(a, b, segments, out, order, weighed, place)


def _settle_conv(
    segments: Segments,
    a: tuple[int, ...],
    a_strides: tuple[int, ...],
    b: tuple[int, ...],
    b_strides: tuple[int, ...],
    out_stride: int | None,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    precision: str,
    norms: bool,
    ordered: bool,
    weighed: bool,
    taps_first: bool,
    blocks: Blocks | None,
) -> Settled:
    positions, line = b[2] * b[3], b[3]
    last = b_strides[1] == 1 and positions > 1
    product = Product(
        outer=b[1],
        channels=a[1],
        size=(a[2], a[3]),
        a_strides=a_strides,
        b_strides=(b[1] * positions, 1, b[1]) if last else (b[1] * positions, positions, 1),
        kernel=(kernel[0], kernel[1]),
        stride=(stride[0], stride[1]),
        padding=(padding[0], padding[1]),
        dilation=(dilation[0], dilation[1]),
        rows_per_example=positions,
        positions=positions,
        line=line,
        wide=max(math.prod(a), math.prod(b)) >= 2**31,
    )
    blocks = blocks or conv_blocks(a, b, segments, kernel)
    first = taps_first or product.area == 1
    return product.settle(segments, blocks, precision, norms, out_stride, ordered, weighed, first)


def linear_products(
    a: Tensor,
    b: Tensor,
    segments: Segments,
    *,
    precision: str = "tf32",
    norms: bool = False,
    out: Tensor | None = None,
    order: Tensor | None = None,
    weighed: Weighed | None = None,
    blocks: Blocks | None = None,
    place: Place = fresh,
) -> Tensor:
    """Return the classes' sums of outer products of the rows of ``b`` (N, T, O) and ``a`` (N, T, D): (L, O · D).

    ``norms``, ``out``, ``order``, ``weighed``, ``precision`` and ``place`` as for `conv_products`.
    """
    a, b = a.contiguous(), b.contiguous()
    out_stride = None if out is None else out.stride(0)
    options = (precision, norms, order is not None, weighed is not None, blocks)
    settled = segments.settled(_settle_linear, a.shape, b.shape, out_stride, *options)
    return settled.run(a, b, segments, out, order, weighed, place)


def _settle_linear(
    segments: Segments,
    a: tuple[int, ...],
    b: tuple[int, ...],
    out_stride: int | None,
    precision: str,
    norms: bool,
    ordered: bool,
    weighed: bool,
    blocks: Blocks | None,
) -> Settled:
    # where examples are looked at one by one the rows of each are its positions, else all rows lie one after the other
    apart = ordered or weighed
    positions = a[1] if apart else 1
    product = Product(
        outer=b[2],
        channels=a[2],
        size=(1, positions),
        a_strides=(positions * a[2], 1, 0, a[2] if apart else 0),
        b_strides=(positions * b[2], 1, b[2] if apart else 0),
        kernel=(1, 1),
        stride=(1, 1),
        padding=(0, 0),
        dilation=(1, 1),
        rows_per_example=a[1],
        positions=positions,
        line=positions,
        wide=max(math.prod(a), math.prod(b)) >= 2**31,
    )
    blocks = blocks or linear_blocks(a, b, segments)
    return product.settle(segments, blocks, precision, norms, out_stride, ordered, weighed)


def conv_blocks(a: Sequence[int], b: Sequence[int], segments: Segments, kernel: Sequence[int]) -> Blocks:
    """Return how to cut the product of a convolution, by the shapes of both sides."""
    area, rows = kernel[0] * kernel[1], segments.largest * b[2] * b[3]
    # one tap at a time is gathered cheaply, but a class of few rows is little more than the writing of its gradient
    taps = area == 1 or (a[1] >= 32 and rows >= 256)
    return _blocks(b[1], a[1], area, rows, segments.examples * b[2] * b[3], taps)


def linear_blocks(a: Sequence[int], b: Sequence[int], segments: Segments) -> Blocks:
    """Return how to cut the product of a linear layer, by the shapes of both sides."""
    return _blocks(b[2], a[2], 1, segments.largest * a[1], segments.examples * a[1], True)


def _blocks(outer: int, channels: int, area: int, rows: int, total: int, taps: bool) -> Blocks:
    k = max(16, min(32, next_power_of_2(rows)))
    few = rows <= k
    # the tests for the border at every tap need registers
    columns, widest = (channels, 128) if taps else (channels * area, 128 if few else 64)
    m = max(16, min(128, next_power_of_2(outer)))
    n = max(16, min(widest, next_power_of_2(columns)))
    slots = max(1, cdiv(total, max(4 * k, rows if few else 0)))
    while m * n > 32 * 64 and cdiv(outer, m) * cdiv(columns, n) * (area if taps else 1) * slots < _BUSY:
        m, n = (m // 2, n) if m > n else (m, n // 2)
    return Blocks(m, n, k, taps, warps=8 if m * n >= 128 * 128 else 4, stages=1 if few else 3)

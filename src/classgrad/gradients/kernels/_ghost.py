"""Norms of class gradients from products of all pairs of rows of a class; neither gradients nor products are stored.

Rows are cut at the class borders into tiles, and a program takes a pair of tiles of one class: it multiplies their rows
of a, then those of b, and adds up the products of the two. Each pair of different tiles is met once and counts twice.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from classgrad.gradients.kernels._combination import sum_parts
from classgrad.gradients.kernels._launch import Launch, Place, cdiv, fresh, launched
from classgrad.gradients.kernels._segments import VARYING, Chunks, Segments, locate, location, sum_slots


@triton.jit
def _placed(first, stop, order, rows, ORDERED: tl.constexpr, TILE: tl.constexpr):
    """Return where the rows of a tile lie, and which of them are within their class."""
    i = first + tl.arange(0, TILE)
    here = i < stop
    place = i.to(tl.int64)
    if ORDERED:
        place = tl.load(order + i // rows, mask=here, other=0) * rows + i % rows
    return place, here


@triton.jit
def _dots(rows, i, i_here, j, j_here, width, PRECISION: tl.constexpr, TILE: tl.constexpr, DEPTH: tl.constexpr):
    """Return the products of two tiles of rows, of which those beyond their class are zero."""
    left = rows + i[:, None] * width
    right = rows + j[None, :] * width
    total = tl.zeros((TILE, TILE), tl.float32)
    for first in range(0, width, DEPTH):
        k = first + tl.arange(0, DEPTH)
        x = tl.load(left + k[None, :], mask=i_here[:, None] & (k < width)[None, :], other=0.0)
        y = tl.load(right + k[:, None], mask=j_here[None, :] & (k < width)[:, None], other=0.0)
        total = tl.dot(x, y, total, input_precision=PRECISION)
    return total


@launched(do_not_specialize=VARYING)
def _pairs(
    a,
    b,
    out,
    order,
    inner,
    outer,
    ahead,
    offsets,
    classes,
    rows,
    uniform,
    chunk,
    UNIFORM: tl.constexpr,
    CLASSES: tl.constexpr,
    ORDERED: tl.constexpr,
    PRECISION: tl.constexpr,
    TILE: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """If ORDERED the examples are not grouped by class and ``order`` says where those of the classes are."""
    slot = tl.program_id(0)
    step = tl.program_id(1)
    owner, start, stop = locate(slot, offsets, classes, rows, uniform, chunk, UNIFORM, CLASSES)
    end = tl.load(offsets + owner + 1) * rows
    other = start + step * TILE
    found = 0.0
    if (start < stop) & (other < end):
        i, i_here = _placed(start, stop, order, rows, ORDERED, TILE)
        j, j_here = _placed(other, end, order, rows, ORDERED, TILE)
        products = _dots(a, i, i_here, j, j_here, inner, PRECISION, TILE, DEPTH)
        products *= _dots(b, i, i_here, j, j_here, outer, PRECISION, TILE, DEPTH)
        found = tl.sum(tl.sum(products, 1), 0) * tl.where(step == 0, 1.0, 2.0)
    tl.store(out + slot * ahead + step, found)


def ghost_norms(
    a: Tensor,
    b: Tensor,
    segments: Segments,
    tile: int,
    *,
    precision: str = "tf32",
    order: Tensor | None = None,
    place: Place = fresh,
) -> Tensor:
    """Return ‖Σ b_iᵀ a_i‖² (L) over the rows of ``a`` (N, T, D) and ``b`` (N, T, O).

    Both are grouped by class, or ``order`` (N, int64) is what would bring them into class order. ``place`` gives out
    memory to work in.
    """
    a, b = a.contiguous(), b.contiguous()
    if not a.numel():
        return a.new_zeros(len(segments))
    chunks, ahead, launch = segments.settled(_settle, a.shape, b.shape[2], tile, precision, order is not None)
    parts = place("parts", (chunks.slots, ahead), a)
    launch(a, b, parts, order, segments.offsets)
    if chunks.uniform:  # those of a class lie together
        return sum_parts(parts.view(len(segments), -1))
    return sum_parts(sum_slots(parts, segments, chunks))


def _settle(
    segments: Segments, a: tuple[int, ...], outer: int, tile: int, precision: str, ordered: bool
) -> tuple[Chunks, int, Launch]:
    """Return how the rows are cut, how many tiles of a class come after each, and the launch."""
    _, positions, inner = a
    chunks = segments.cut(positions, tile)
    ahead = max(1, cdiv(segments.largest * positions, tile))
    launch = _pairs.settle(
        (chunks.slots, ahead),
        inner=inner,
        outer=outer,
        ahead=ahead,
        **location(segments, chunks),
        ORDERED=ordered,
        PRECISION=precision,
        TILE=tile,
        DEPTH=32,
        num_warps=4,
    )
    return chunks, ahead, launch

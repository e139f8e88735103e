"""The backward passes of layer and RMS normalization, with the parameter gradients summed by class.

Rows are (example, position); a program takes one chunk of one class's rows, makes their dx and sums what they give to
the weight and the bias; the chunks' sums are then added class by class.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator"

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from classgrad.gradients.kernels._launch import Launch, launched, next_power_of_2
from classgrad.gradients.kernels._segments import VARYING, Chunks, Segments, locate, location, sum_slots


@launched(do_not_specialize=VARYING)
def _backward(
    dy,
    x,
    mean,
    rstd,
    weight,
    dx,
    parts,
    width,
    eps,
    offsets,
    classes,
    rows,
    uniform,
    chunk,
    UNIFORM: tl.constexpr,
    CLASSES: tl.constexpr,
    CENTRED: tl.constexpr,
    SAVED: tl.constexpr,
    AFFINE: tl.constexpr,
    INPUT: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    slot = tl.program_id(0)
    _, start, stop = locate(slot, offsets, classes, rows, uniform, chunk, UNIFORM, CLASSES)
    column = tl.arange(0, WIDTH)
    inside = column < width
    if AFFINE:
        gamma = tl.load(weight + column, mask=inside, other=0.0)
    by_weight = tl.zeros((ROWS, WIDTH), tl.float32)
    by_bias = tl.zeros((ROWS, WIDTH), tl.float32)
    for first in range(start, stop, ROWS):
        row = first + tl.arange(0, ROWS)
        here = row < stop
        there = here[:, None] & inside[None, :]
        place = row.to(tl.int64)[:, None] * width + column[None, :]
        g = tl.load(dy + place, mask=there, other=0.0)
        v = tl.load(x + place, mask=there, other=0.0)
        r = tl.load(rstd + row, mask=here, other=0.0) if SAVED else tl.rsqrt(tl.sum(v * v, 1) / width + eps)
        if CENTRED:
            v = (v - tl.load(mean + row, mask=here, other=0.0)[:, None]) * r[:, None]
            by_bias += g
        else:
            v = v * r[:, None]
        by_weight += g * v
        if INPUT:
            if AFFINE:
                g = g * gamma[None, :]
            d = g - v * (tl.sum(g * v, 1) / width)[:, None]
            if CENTRED:
                d -= (tl.sum(g, 1) / width)[:, None]
            tl.store(dx + place, d * r[:, None], mask=there)
    part = parts + slot.to(tl.int64) * (2 * width if CENTRED else width) + column
    tl.store(part, tl.sum(by_weight, 0), mask=inside)
    if CENTRED:
        tl.store(part + width, tl.sum(by_bias, 0), mask=inside)


def layer_norm_backward(
    dy: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    segments: Segments,
    width: int,
    *,
    with_input: bool = True,
    out: Tensor | None = None,
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Return dx (None unless ``with_input``) and the classes' weight and bias gradients, (L, width) each.

    The last dimensions of ``x`` and ``dy`` (N, ...), ``width`` numbers together, are normalized; examples are grouped
    by class, and ``mean`` and ``rstd`` hold one number per row, as torch saves them. dx is written to ``out``, which is
    contiguous, if that is given.
    """
    dx, sums = _run(dy, x, mean, rstd, weight, segments, width, 0.0, with_input, out)
    return dx, sums[:, :width], sums[:, width:]


def rms_norm_backward(
    dy: Tensor,
    x: Tensor,
    rstd: Tensor | None,
    weight: Tensor | None,
    segments: Segments,
    width: int,
    eps: float,
    *,
    with_input: bool = True,
) -> tuple[Tensor | None, Tensor]:
    """Return dx (None unless ``with_input``) and the classes' weight gradients (L, width).

    Without ``rstd`` it is worked out from the rows and ``eps``.
    """
    return _run(dy, x, None, rstd, weight, segments, width, eps, with_input)


def _run(
    dy: Tensor,
    x: Tensor,
    mean: Tensor | None,
    rstd: Tensor | None,
    weight: Tensor | None,
    segments: Segments,
    width: int,
    eps: float,
    with_input: bool,
    out: Tensor | None = None,
) -> tuple[Tensor | None, Tensor]:
    """Return dx and the classes' sums for the weight and, if there is a mean, next to them those for the bias."""
    dy, x = dy.contiguous(), x.contiguous()
    given = (mean is not None, rstd is not None, weight is not None and with_input, with_input)
    chunks, launch = segments.settled(_settle, x.shape, width, float(eps), *given)
    dx = torch.empty_like(x) if with_input and out is None else out
    parts = x.new_empty(chunks.slots, width if mean is None else 2 * width)
    launch(dy, x, mean, rstd, weight, dx, parts, segments.offsets)
    return dx, sum_slots(parts, segments, chunks)


def _settle(
    segments: Segments,
    shape: torch.Size,
    width: int,
    eps: float,
    centred: bool,
    saved: bool,
    affine: bool,
    with_input: bool,
) -> tuple[Chunks, Launch]:
    chunks, rows = _cut(segments, shape[1:].numel() // width, width)
    block = next_power_of_2(width)
    launch = _backward.settle(
        (chunks.slots,),
        width=width,
        eps=eps,
        **location(segments, chunks),
        CENTRED=centred,
        SAVED=saved,
        AFFINE=affine,
        INPUT=with_input,
        ROWS=rows,
        WIDTH=block,
        num_warps=max(1, min(16, rows * block // 512)),
    )
    return chunks, launch


def _cut(segments: Segments, per_example: int, width: int) -> tuple[Chunks, int]:
    """Return chunks that keep some 1000 programs busy, and how many rows of one a program holds at a time."""
    rows = max(1, min(16, 4096 // next_power_of_2(width)))
    total, most = segments.examples * per_example, segments.largest * per_example
    if most <= 64 and len(segments) >= 96:
        return segments.cut(per_example, max(1, most)), rows  # as many programs as there are units: nothing to add up
    size = max(8, rows)  # the sums of a chunk of fewer rows would weigh as much as the rows
    while size < 256 and total > 1024 * size:
        size *= 2
    return segments.cut(per_example, size), rows

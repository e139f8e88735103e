"""Sums of outer products by class.

A layer with a weight matrix has, for example i, inputs a_i (R × D) and output gradients b_i (R × O), R being the
number of positions; its gradient for class l is Σ_{i in l} b_iᵀ a_i. Arguments are grouped by class; ``sizes`` are the
numbers of examples of the classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

import torch
from torch import Tensor

_TILE, _UNITS, _LEAST_ROWS = 64, 512, 128
"""Of a GPU: elements on a side of a tile, tiles that keep it busy, rows that are worth a part of their own."""


def class_products(a: Tensor, b: Tensor, sizes: Sequence[int], out: Tensor | None = None) -> Tensor:
    """Return Σ b_iᵀ a_i for each class, (L, O, D), in ``out`` if it is given."""
    if out is None:
        out = a.new_empty(len(sizes), b.shape[2], a.shape[2])
    if out.dtype != a.dtype:
        return out.copy_(class_products(a, b, sizes))
    if _equal(sizes):
        return equal_products(a, b, len(sizes), out)
    for slot, left, right in zip(out, *rows_by_class(a, b, sizes), strict=True):
        torch.mm(right.T, left, out=slot)
    return out


def equal_products(a: Tensor, b: Tensor, classes: int, out: Tensor) -> Tensor:
    """Write Σ b_iᵀ a_i of so many classes, all with the same number of examples."""
    if out.dtype != a.dtype:
        return out.copy_(equal_products(a, b, classes, a.new_empty(out.shape)))
    (examples, positions, inner), outer = a.shape, b.shape[2]
    rows = examples * positions // classes
    parts = _parts(classes, rows, inner, outer) if a.is_cuda else 1
    left = a.reshape(classes * parts, rows // parts, inner)
    right = b.reshape(classes * parts, rows // parts, outer).mT
    if parts == 1:
        return torch.bmm(right, left, out=out)
    return torch.sum((right @ left).view(classes, parts, *out.shape[1:]), 1, out=out)


@lru_cache
def _parts(classes: int, rows: int, inner: int, outer: int) -> int:
    """Return into how many parts the rows of each class should be split and their products added.

    A GPU gives each tile of a product to one of its units, which goes through all rows: few tiles leave most idle.
    """
    tiles = classes * -(-inner // _TILE) * -(-outer // _TILE)
    parts = 1
    while 2 * parts * tiles <= _UNITS and rows % (2 * parts) == 0 and rows // (2 * parts) >= _LEAST_ROWS:
        parts *= 2
    return parts


def _equal(sizes: Sequence[int]) -> bool:
    return bool(sizes) and sizes[0] > 0 and min(sizes) == max(sizes)


def rows_by_class(a: Tensor, b: Tensor, sizes: Sequence[int]) -> tuple[list[Tensor], list[Tensor]]:
    """Return the rows of each class, of both sides."""
    stops = list(accumulate(sizes))
    spans = [(stop - size, stop) for stop, size in zip(stops, sizes, strict=True)]
    left, right = ([v[i:j].flatten(0, 1) for i, j in spans] for v in (a, b))
    return left, right

"""Sums of outer products by class, and their norms without making them.

A layer with a weight matrix has, for example i, inputs a_i (R × D) and output gradients b_i (R × O), R being the
number of positions; its gradient for class l is Σ_{i in l} b_iᵀ a_i. The ghost identity
⟨Σ_i b_iᵀ a_i, Σ_j b_jᵀ a_j⟩ = Σ_{rows r of i, s of j} ⟨a_r, a_s⟩⟨b_r, b_s⟩ gives norms and Gram from small products.
Arguments are grouped by class; ``sizes`` are the numbers of examples of the classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from classgrad.gradients._terms import promote

_GRAM_ROWS = 4096
"""Rows of the ghost Gram made at a time."""

WHOLE_BATCH_ROWS = 2048
"""Rows up to which the products of all pairs of a batch are no more work than many small operations."""

_TILE, _UNITS, _LEAST_ROWS = 64, 512, 128
"""Of a GPU: elements on a side of a tile, tiles that keep it busy, rows that are worth a part of their own."""


def class_products(a: Tensor, b: Tensor, sizes: Sequence[int], out: Tensor | None = None) -> Tensor:
    """Return Σ b_iᵀ a_i for each class, (L, O, D), in ``out`` if it is given."""
    if out is None:
        out = a.new_empty(len(sizes), b.shape[2], a.shape[2])
    if out.dtype != a.dtype:
        return out.copy_(class_products(a, b, sizes))
    if _equal(sizes):
        left, right = (v.reshape(len(sizes), -1, v.shape[2]) for v in (a, b))
        parts = _parts(left, right)
        if parts == 1:
            return torch.bmm(right.mT, left, out=out)
        left, right = (v.reshape(len(sizes) * parts, -1, v.shape[2]) for v in (left, right))
        return torch.sum((right.mT @ left).view(len(sizes), parts, *out.shape[1:]), 1, out=out)
    for slot, left, right in zip(out, *_classes(a, b, sizes), strict=True):
        torch.mm(right.T, left, out=slot)
    return out


def _parts(a: Tensor, b: Tensor) -> int:
    """Return into how many parts the rows of each class should be split and their products added.

    A GPU gives each tile of a product to one of its units, which goes through all rows: few tiles leave most idle.
    """
    classes, rows = a.shape[:2]
    if not a.is_cuda:
        return 1
    tiles = classes * -(-a.shape[2] // _TILE) * -(-b.shape[2] // _TILE)
    parts = 1
    while 2 * parts * tiles <= _UNITS and rows % (2 * parts) == 0 and rows // (2 * parts) >= _LEAST_ROWS:
        parts *= 2
    return parts


def ghost_square_norms(a: Tensor, b: Tensor, sizes: Sequence[int], owners: Tensor, limit: int) -> Tensor:
    """Return ‖Σ b_iᵀ a_i‖² for each class; ``owners`` are the classes of the examples, counted from 0.

    The products of all classes are made at once where they fit into the limit: classes of equal size side by side,
    others as those of the whole batch, if it is small, of which only pairs within a class count.
    """
    a, b = promote(a), promote(b)
    pairs = sum((size * a.shape[1]) ** 2 for size in sizes)
    if _equal(sizes) and 2 * pairs * a.element_size() <= limit:
        left, right = (v.reshape(len(sizes), -1, v.shape[2]) for v in (a, b))
        return ((left @ left.mT) * (right @ right.mT)).sum((1, 2))
    rows = len(a) * a.shape[1]
    if rows <= WHOLE_BATCH_ROWS and 3 * rows**2 * a.element_size() <= limit:
        left, right = (v.reshape(-1, v.shape[2]) for v in (a, b))
        owners = owners.repeat_interleave(a.shape[1])
        # A row that is not finite must not reach other classes, so what is not theirs is left out rather than weighed.
        within = ((left @ left.T) * (right @ right.T)).masked_fill(owners[:, None] != owners, 0).sum(1)
        own = owners == torch.arange(len(sizes), device=a.device)[:, None]
        return within.where(own, 0).sum(1)
    norms = [((left @ left.T) * (right @ right.T)).sum() for left, right in zip(*_classes(a, b, sizes), strict=True)]
    return torch.stack(norms)


def ghost_gram(a: Tensor, b: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return ⟨Σ_i b_iᵀ a_i, Σ_j b_jᵀ a_j⟩ for all pairs of classes."""
    positions = a.shape[1]
    left, right = (promote(v).reshape(-1, v.shape[2]) for v in (a, b))
    finite = left.isfinite().all(1) & right.isfinite().all(1)
    # 0 × NaN would carry a row that is not finite to all classes; it is left out here and put into its own at the end
    left, right = (v.where(finite[:, None], v.new_zeros(())) for v in (left, right))
    counts = torch.tensor(sizes, device=a.device) * positions
    owners = torch.repeat_interleave(torch.arange(len(sizes), device=a.device), counts)
    members = torch.nn.functional.one_hot(owners, len(sizes)).T.to(left.dtype)
    out = left.new_zeros(len(sizes), len(sizes))
    for start in range(0, len(left), _GRAM_ROWS):
        band = slice(start, start + _GRAM_ROWS)
        products = (left[band] @ left.T) * (right[band] @ right.T)
        out += members[:, band] @ products @ members.T
    bad = members @ (~finite).to(left.dtype) > 0
    return out.masked_fill(bad[:, None] | bad, torch.nan)


def _equal(sizes: Sequence[int]) -> bool:
    return bool(sizes) and sizes[0] > 0 and min(sizes) == max(sizes)


def _classes(a: Tensor, b: Tensor, sizes: Sequence[int]) -> tuple[list[Tensor], list[Tensor]]:
    """Return the rows of each class, of both sides."""
    stops = list(accumulate(sizes))
    spans = [(stop - size, stop) for stop, size in zip(stops, sizes, strict=True)]
    left, right = ([v[i:j].reshape(-1, v.shape[2]) for i, j in spans] for v in (a, b))
    return left, right

"""Sums of outer products by class, and their norms without making them.

A layer with a weight matrix has, for example i, inputs a_i (R × D) and output gradients b_i (R × O), R being the
number of positions; its gradient for class l is Σ_{i in l} b_iᵀ a_i. The ghost identity
⟨Σ_i b_iᵀ a_i, Σ_j b_jᵀ a_j⟩ = Σ_{rows r of i, s of j} ⟨a_r, a_s⟩⟨b_r, b_s⟩ gives norms and Gram from small products.
All arguments are grouped by class.
"""

from __future__ import annotations

import torch
from torch import Tensor

from classgrad.gradients._layout import ClassLayout

_GRAM_ROWS = 4096
"""Rows of the ghost Gram made at a time."""


def class_products(a: Tensor, b: Tensor, layout: ClassLayout, start: int, stop: int) -> Tensor:
    """Return Σ b_iᵀ a_i for classes start … stop − 1: (stop − start, O, D)."""
    if layout.equal:
        m = layout.equal
        left = b[start * m : stop * m].reshape(stop - start, -1, b.shape[2])
        return left.transpose(1, 2) @ a[start * m : stop * m].reshape(stop - start, -1, a.shape[2])
    out = a.new_zeros(stop - start, b.shape[2], a.shape[2])
    for slot, (first, last) in zip(out, layout.bounds[start:stop], strict=True):
        if last > first:
            torch.mm(b[first:last].reshape(-1, b.shape[2]).T, a[first:last].reshape(-1, a.shape[2]), out=slot)
    return out


def ghost_square_norms(a: Tensor, b: Tensor, layout: ClassLayout) -> Tensor:
    """Return ‖Σ b_iᵀ a_i‖² for each class."""
    if layout.equal:
        left, right = (v.reshape(len(layout), -1, v.shape[2]) for v in (a, b))
        return ((left @ left.mT) * (right @ right.mT)).sum((1, 2))
    out = a.new_zeros(len(layout))
    for slot, (first, last) in zip(out, layout.bounds, strict=True):
        left, right = (v[first:last].reshape(-1, v.shape[2]) for v in (a, b))
        slot.copy_(((left @ left.T) * (right @ right.T)).sum())
    return out


def ghost_gram(a: Tensor, b: Tensor, layout: ClassLayout) -> Tensor:
    """Return ⟨Σ_i b_iᵀ a_i, Σ_j b_jᵀ a_j⟩ for all pairs of classes."""
    positions = a.shape[1]
    left, right = (v.reshape(-1, v.shape[2]) for v in (a, b))
    members = layout.members(a.dtype).repeat_interleave(positions, 1)
    out = a.new_zeros(len(layout), len(layout))
    for start in range(0, len(left), _GRAM_ROWS):
        band = slice(start, start + _GRAM_ROWS)
        products = (left[band] @ left.T) * (right[band] @ right.T)
        out += members[:, band] @ products @ members.T
    return out

"""Norms and Gram matrix of sums of outer products by class, without making the sums.

With inputs a_i (R × D) and output gradients b_i (R × O) of example i, R being the number of positions,
⟨Σ_i b_iᵀ a_i, Σ_j b_jᵀ a_j⟩ = Σ_{rows r of i, s of j} ⟨a_r, a_s⟩⟨b_r, b_s⟩. Arguments are grouped by class; ``sizes``
are the numbers of examples of the classes and ``owners`` the classes of the examples, counted from 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from classgrad.gradients.terms._cost import pairs_of
from classgrad.gradients.terms._products import rows_by_class
from classgrad.gradients.terms._terms import promote

_GRAM_ROWS = 4096
"""Rows of the ghost Gram made at a time."""


def ghost_square_norms(a: Tensor, b: Tensor, sizes: Sequence[int], owners: Tensor, limit: int) -> Tensor:
    """Return ‖Σ b_iᵀ a_i‖² for each class.

    The products of all classes are made at once if they fit into the limit: classes of one row need none, those of
    equal size lie side by side, others are within reach of each other in blocks of rows as long as the largest.
    """
    a, b = promote(a), promote(b)
    positions = a.shape[1]
    if not positions:
        return a.new_zeros(len(sizes))
    left, right = (v.flatten(0, 1) for v in (a, b))
    pairs = pairs_of(Counter(sizes), positions, left.shape[1] + right.shape[1], a.device.type)
    fits = 3 * pairs.count * a.element_size() <= limit
    if pairs.way == "single":
        alone = torch.linalg.vector_norm(left, dim=1).square() * torch.linalg.vector_norm(right, dim=1).square()
        return alone if len(alone) == len(sizes) else _sums(alone, owners, len(sizes))
    if pairs.way == "equal" and fits:
        left, right = (v.view(-1, pairs.block, v.shape[1]) for v in (left, right))
        return ((left @ left.mT) * (right @ right.mT)).sum((1, 2))
    if pairs.way == "blocks" and fits:
        owners = owners.repeat_interleave(positions) if positions > 1 else owners
        return _sums(_within(left, right, owners, pairs.block), owners, len(sizes))
    each = zip(*rows_by_class(a, b, sizes), strict=True)
    return torch.stack([((left @ left.T) * (right @ right.T)).sum() for left, right in each])


def _within(left: Tensor, right: Tensor, owners: Tensor, block: int) -> Tensor:
    """Return, for each row, its products with the rows of its class, or a share of them that adds up over the class.

    No class is longer than a block, so all of its pairs lie in a block or in two that follow each other. A row that is
    not finite must not reach other classes, so what is not theirs is left out rather than weighed.
    """
    blocks = max(0, len(left) // block - 1)
    rest = blocks * block
    tail = (left[rest:] @ left[rest:].T).mul_(right[rest:] @ right[rest:].T)
    last = tail.masked_fill_(owners[rest:, None] != owners[rest:], 0).sum(1)
    if not blocks:
        return last

    def ahead(v: Tensor) -> Tensor:
        """Return every block together with the next."""
        return v.as_strided((blocks, 2 * block, *v.shape[1:]), (block * v.stride(0), *v.stride()), v.storage_offset())

    own_left, own_right, own = (v[:rest].view(blocks, block, *v.shape[1:]) for v in (left, right, owners))
    products = (own_left @ ahead(left).mT).mul_(own_right @ ahead(right).mT)
    products.masked_fill_(own[:, :, None] != ahead(owners)[:, None, :], 0)
    sums = products[:, :, :block].sum(2) + 2 * products[:, :, block:].sum(2)  # pairs ahead are met once
    return torch.cat((sums.flatten(), last))


def _sums(values: Tensor, owners: Tensor, classes: int) -> Tensor:
    """Sum the values of rows that are grouped by class, without waiting for the device to tell where classes end."""
    ends = torch.searchsorted(owners, torch.arange(classes + 1, device=owners.device))
    return torch.segment_reduce(values, "sum", offsets=ends, unsafe=True, initial=0)


def ghost_gram(a: Tensor, b: Tensor, classes: int, owners: Tensor) -> Tensor:
    """Return ⟨Σ_i b_iᵀ a_i, Σ_j b_jᵀ a_j⟩ for all pairs of classes."""
    left, right = (promote(v).flatten(0, 1) for v in (a, b))
    finite = left.isfinite().all(1) & right.isfinite().all(1)
    # 0 × NaN would carry a row that is not finite to all classes; it is left out here and put into its own at the end
    left, right = (v.where(finite[:, None], v.new_zeros(())) for v in (left, right))
    owners = owners.repeat_interleave(a.shape[1])
    members = (owners == torch.arange(classes, device=a.device)[:, None]).to(left.dtype)
    out = left.new_zeros(classes, classes)
    for start in range(0, len(left), _GRAM_ROWS):
        band = slice(start, start + _GRAM_ROWS)
        products = (left[band] @ left.T) * (right[band] @ right.T)
        out += members[:, band] @ products @ members.T
    bad = members @ (~finite).to(left.dtype) > 0
    return out.masked_fill(bad[:, None] | bad, torch.nan)

"""Directional noise: how far a batch's class gradients are from those of the whole training set (Sec. 4.1).

Both arguments hold one class gradient per row, shape (..., L, P). Results have shape (..., L), float64; those about
directions are nan where a gradient is zero (a class that is absent from the batch).
"""

from __future__ import annotations

import torch
from torch import Tensor

from classgrad._errors import InputError


def projection(batch: Tensor, full: Tensor) -> Tensor:
    """p_l: the cosine between a batch's class gradient and the full-batch one (left-hand side of Eq. "proj").

    1 is a noiseless direction, 0 one without any signal.

    >>> projection(torch.tensor([[3.0, 4.0]]), torch.tensor([[2.0, 0.0]])).tolist()
    [0.6]
    """
    _check(batch, full)
    along: Tensor = torch.linalg.vecdot(batch, full).double()
    return (along / _norms(batch) / _norms(full)).clamp(-1, 1)


def deviation(batch: Tensor, full: Tensor) -> Tensor:
    """‖g̃_l − g_l‖, the σ_l of the PCNSGD theorem in this one batch.

    Both must be gradients of the same f^(l); multiply those of a batch in which the classes are not in the training
    set's proportions by :func:`to_population` first.
    """
    _check(batch, full)
    return _norms(batch - full)


def orthogonal_noise(batch: Tensor, full: Tensor) -> Tensor:
    """‖Z^(l)‖ sin θ / (√ñ_l ‖∇f^(l)‖): the part of the noise across the full-batch direction, relative to the signal.

    The right-hand side of Eq. "proj" is 1 − half its square. Same scale of both arguments as in :func:`deviation`.
    """
    _check(batch, full)
    direction = full / torch.linalg.vector_norm(full, dim=-1, keepdim=True)
    across = batch - torch.linalg.vecdot(batch, direction).unsqueeze(-1) * direction
    return torch.where(_norms(batch) > 0, _norms(across) / _norms(full), torch.nan)


def to_population(batch_counts: Tensor, counts: Tensor) -> Tensor:
    """Factors (n_l/n)(ñ/ñ_l) that make a batch's class gradients estimate those of the training set, shape (L,).

    1 where the batch has the training set's proportions; nan for a class without examples in the batch.

    >>> to_population(torch.tensor([8, 8]), torch.tensor([60, 20])).tolist()
    [1.5, 0.5]
    """
    share = counts.double() / counts.sum()
    batch_share = batch_counts.double() / batch_counts.sum()
    return torch.where(batch_counts > 0, share / batch_share, torch.nan)


def _norms(gradients: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(gradients, dim=-1, dtype=torch.float64)
    return norms


def _check(batch: Tensor, full: Tensor) -> None:
    if batch.ndim < 2 or batch.shape != full.shape:
        raise InputError(
            "Parameters `batch` and `full` should have one shape (..., classes, parameters). "
            f"Found {tuple(batch.shape)} and {tuple(full.shape)}."
        )

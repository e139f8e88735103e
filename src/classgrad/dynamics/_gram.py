"""Pure functions of the Gram matrix K_ij = ⟨g_i, g_j⟩ of the class gradients.

Every function takes K of shape (..., L, L), any leading dimensions, and works in float64. A class whose gradient is
zero (absent, or learnt to the last bit) has norm 0 and adds nothing to any sum; what needs its direction (its
cosines, its angle, its condition) is nan, and its ratio C_t is infinite unless all the others are zero too.
"""

from __future__ import annotations

import torch
from torch import Tensor

from classgrad._errors import InputError
from classgrad.rules import ClassStatistics, Normalize


def class_norms(gram: Tensor) -> Tensor:
    """Norms ‖g_l‖, shape (..., L).

    >>> class_norms(torch.tensor([[4.0, 0.0], [0.0, 9.0]])).tolist()
    [2.0, 3.0]
    """
    return _checked(gram).diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt()


def normalizing_weights(gram: Tensor) -> Tensor:
    """Weights w_l = 1/‖g_l‖ of per-class normalization (PCN), 0 for a class whose gradient is zero."""
    norms = class_norms(gram)
    return Normalize()(ClassStatistics(torch.arange(norms.shape[-1]), norms != 0, norms))


def weighted_gram(gram: Tensor, weights: Tensor) -> Tensor:
    """Gram matrix of the weighted class gradients w_l g_l; ``weights`` has shape (..., L)."""
    gram, weights = _matched(gram, weights)
    return gram * weights.unsqueeze(-1) * weights.unsqueeze(-2)


def unit_gram(gram: Tensor) -> Tensor:
    """Gram matrix of the unit class gradients g_l/‖g_l‖, with zero rows for classes whose gradient is zero.

    The PCN version of a quantity is that quantity of this matrix: ``imbalance_ratio(unit_gram(gram))`` is C̃_t.
    """
    return weighted_gram(gram, normalizing_weights(gram))


def class_cosines(gram: Tensor) -> Tensor:
    """Cosines of the angles between every two class gradients, shape (..., L, L), within [-1, 1]."""
    norms = class_norms(gram)
    directed = (norms > 0).unsqueeze(-1) & (norms > 0).unsqueeze(-2)
    return torch.where(directed, unit_gram(gram).clamp(-1, 1), torch.nan)


def imbalance_ratio(gram: Tensor) -> Tensor:
    """C_t^(l) = ‖Σ_{i≠l} g_i‖ / ‖g_l‖ (App. "Multi-class analysis"; Sec. 3.1 for two classes), shape (..., L)."""
    return _rest_norms(gram) / class_norms(gram)


def cos_alpha(gram: Tensor) -> Tensor:
    """Cosine of the angle α^(l) between g_l and the sum of the other class gradients, shape (..., L)."""
    along = _without_own(gram).sum(-1)
    return (along / class_norms(gram) / _rest_norms(gram)).clamp(-1, 1)


def condition(gram: Tensor) -> Tensor:
    """Left-hand side of 1 + C_t^(l) cos α^(l) > 0 (Eq. "condition"), computed as (K 1)_l / K_ll, shape (..., L).

    Where it is negative, a small enough step along the sum of the gradients makes that class's loss grow.
    """
    gram = _checked(gram)
    return gram.sum(-1) / gram.diagonal(dim1=-2, dim2=-1)


def omega(gram: Tensor) -> Tensor:
    """ω^(l) = 1 + cos α^(l), α^(l) the angle of g_l with the sum of the other *unit* class gradients, shape (..., L).

    With two classes both entries are the ω_t = 1 + cos α of the PCNGD theorems.
    """
    return 1 + cos_alpha(unit_gram(gram))


def predicted_change(gram: Tensor, weights: Tensor, lr: float | Tensor) -> Tensor:
    """First-order change −η (K w)_l of every class's loss in the step −η Σ_i w_i g_i, shape (..., L).

    GD has w = 1, PCNGD :func:`normalizing_weights`. ``lr`` is a number or one value per matrix.
    """
    gram, weights = _matched(gram, weights)
    change = (gram @ weights.unsqueeze(-1)).squeeze(-1)
    return -torch.as_tensor(lr, dtype=torch.float64, device=gram.device).unsqueeze(-1) * change


def _checked(gram: Tensor) -> Tensor:
    if gram.ndim < 2 or gram.shape[-1] != gram.shape[-2] or gram.shape[-1] == 0:
        raise InputError(
            f"Parameter `gram` should have shape (..., classes, classes), as G @ G.T has for class gradients in the "
            f"rows of G. Found {tuple(gram.shape)}."
        )
    return gram.to(torch.float64)


def _matched(gram: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    gram = _checked(gram)
    if weights.ndim < 1 or weights.shape[-1] != gram.shape[-1]:
        raise InputError(
            f"Parameter `weights` should have shape (..., {gram.shape[-1]}), one value per class. "
            f"Found {tuple(weights.shape)}."
        )
    return gram, weights.to(gram)


def _without_own(gram: Tensor) -> Tensor:
    own = torch.eye(gram.shape[-1], dtype=torch.bool, device=gram.device)
    return _checked(gram).masked_fill(own, 0.0)


def _rest_norms(gram: Tensor) -> Tensor:
    """Norms ‖Σ_{i≠l} g_i‖: summed without class l, since subtracting it would cancel where it dominates."""
    gram = _checked(gram)
    others = 1 - torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    return ((others @ gram) * others).sum(-1).clamp(min=0).sqrt()

"""Where GD and PCNGD stop (Sec. 4.5, "On the better generalization of PCN algorithms")."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from classgrad._errors import InputError
from classgrad.dynamics import class_norms, normalizing_weights
from classgrad.theory._conditions import direction_length


@dataclass(frozen=True, eq=False)
class FixedPoints:
    """Distances from the two conditions: 0 at a fixed point, 1 when all class gradients are parallel; shape (...)."""

    gd: Tensor
    """‖Σ_l g_l‖ / Σ_l ‖g_l‖; GD stops where g_0 = -g_1."""
    pcngd: Tensor
    """‖Σ_l g_l/‖g_l‖‖ / L; PCNGD stops where g_0 = -γ g_1, for any γ > 0."""
    mean_ratio: Tensor
    """Norm of the *mean* gradient of every class over that of class 0, shape (..., classes).

    (‖g_l‖/n_l)/(‖g_0‖/n_0): at a fixed point of GD with two classes it is the imbalance n_0/n_1, at one of PCNGD
    it can be anything.
    """


def fixed_points(gram: Tensor, counts: Tensor) -> FixedPoints:
    """Tell how far the class gradients are from a fixed point of GD and from one of PCNGD.

    The paper writes GD's condition for the mean gradients of the classes; it holds for their sums, g_l = n_l/n times
    that, which is why the minority's mean gradient is longer by the imbalance.

    >>> g = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    >>> found = fixed_points(g @ g.T, torch.tensor([60, 1]))
    >>> found.gd.item(), found.pcngd.item(), found.mean_ratio.tolist()
    (0.0, 0.0, [1.0, 60.0])
    """
    norms = class_norms(gram)
    if counts.shape != norms.shape[-1:] or not bool((counts >= 0).all()):
        raise InputError(
            f"Parameter `counts` should be {norms.shape[-1]} numbers, none negative. Found {counts.tolist()}."
        )
    plain = direction_length(gram, torch.ones_like(norms)).sqrt().squeeze(-1) / norms.sum(-1)
    unit = direction_length(gram, normalizing_weights(gram)).sqrt().squeeze(-1) / (norms > 0).sum(-1)
    mean = torch.where(counts > 0, norms / counts, torch.nan)
    return FixedPoints(gd=plain, pcngd=unit, mean_ratio=mean / mean[..., :1])

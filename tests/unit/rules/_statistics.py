"""Class gradients as vectors, and what a rule sees of them."""

from __future__ import annotations

import torch
from torch import Tensor

from classgrad.rules import ClassStatistics


def statistics_of(
    gradients: Tensor, active: Tensor | None = None, projections: Tensor | None = None
) -> ClassStatistics:
    """The statistics of class gradients given as rows."""
    gram = gradients @ gradients.T
    norms = gram.diagonal().sqrt()
    active = norms > 0 if active is None else active
    return ClassStatistics(torch.arange(len(gradients)), active, norms, gram, projections)


def direction(rule, gradients: Tensor, **options) -> Tensor:
    """The update direction that a rule makes of class gradients."""
    weights = rule(statistics_of(gradients, **options))
    assert weights.shape == (len(gradients),)
    return weights @ gradients


GRADIENTS = torch.tensor([[3.0, 0.0, 0.0], [0.0, 4.0, 0.0], [1.0, 1.0, 1.0]], dtype=torch.float64)

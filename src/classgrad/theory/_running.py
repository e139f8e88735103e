"""Minima, maxima and sums over the steps before a horizon: the step axis is the second to last."""

from __future__ import annotations

import torch
from torch import Tensor


def running_min(values: Tensor) -> Tensor:
    """Return the smallest value so far along the steps.

    >>> running_min(torch.tensor([[3.0], [1.0], [2.0]])).flatten().tolist()
    [3.0, 1.0, 1.0]
    """
    return values.cummin(dim=-2).values


def running_max(values: Tensor) -> Tensor:
    """Return the largest value so far along the steps."""
    return values.cummax(dim=-2).values


def running_all(values: Tensor) -> Tensor:
    """Return whether the condition held at every step so far."""
    return values.to(torch.int8).cummin(dim=-2).values.bool()


def running_sum(values: Tensor) -> Tensor:
    """Return the sum so far along the steps."""
    return values.cumsum(dim=-2)


def horizons(steps: int) -> Tensor:
    """Return T̃ = 1 .. steps as a column.

    >>> horizons(2).tolist()
    [[1.0], [2.0]]
    """
    return torch.arange(1, steps + 1, dtype=torch.float64).unsqueeze(-1)

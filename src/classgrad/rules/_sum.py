"""Plain gradient descent."""

from __future__ import annotations

from torch import Tensor

from classgrad.rules._rule import ClassStatistics, Need, Rule


class Sum(Rule):
    """GD and SGD: every class counts as its gradient is, w_l = 1.

    >>> import torch
    >>> Sum()(ClassStatistics(torch.arange(2), torch.tensor([True, True])))
    tensor([1., 1.])
    """

    needs: frozenset[Need] = frozenset()

    def __call__(self, statistics: ClassStatistics) -> Tensor:
        """Return ones."""
        reference = statistics.norms if statistics.norms is not None else statistics.active.float()
        return reference.new_ones(statistics.active.shape)

    def __repr__(self) -> str:
        return "Sum()"

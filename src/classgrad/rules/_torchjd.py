"""TorchJD's weightings as rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from classgrad._errors import InputError
from classgrad.rules._rule import ClassStatistics, Need, Rule, required


class GramianRule(Rule):
    """A rule from any function of the Gram matrix; see :func:`from_torchjd`."""

    needs: frozenset[Need] = frozenset({"norms", "gram"})
    separable: bool = False

    def __init__(self, weighting: Callable[[Tensor], Tensor]) -> None:
        self.weighting = weighting

    def __call__(self, statistics: ClassStatistics) -> Tensor:
        """Return the weighting's answer on the classes that take part, zero for the others."""
        gram = required(statistics.gram)
        index = statistics.active.nonzero().squeeze(1)
        weights = gram.new_zeros(gram.shape[0])
        if len(index):
            found = self.weighting(gram[index][:, index])
            if found.shape != index.shape:
                raise InputError(
                    f"Parameter `weighting` should return one weight per row of the Gram matrix, {len(index)}. "
                    f"Found shape {tuple(found.shape)}."
                )
            weights[index] = found.to(gram.dtype)
        return weights

    def __repr__(self) -> str:
        return f"from_torchjd({self.weighting!r})"


def from_torchjd(weighting: Callable[..., Any]) -> Rule:
    """Turn a TorchJD Gramian weighting (``UPGradWeighting()``, ``MGDAWeighting()``, …) into a rule.

    Its Jacobian's rows are the class gradients. Anything that maps a Gram matrix to one weight per row will do, but not
    a weighting that TorchJD documents as one of the Jacobian itself (``MoDoWeighting``), nor an aggregator.

    >>> import torch
    >>> rule = from_torchjd(lambda gram: gram.diagonal().rsqrt())  # PCN, written as a Gramian weighting
    >>> gram = torch.diag(torch.tensor([4.0, 0.0]))
    >>> rule(ClassStatistics(torch.arange(2), gram.diagonal() > 0, gram.diagonal().sqrt(), gram))
    tensor([0.5000, 0.0000])
    """
    if not callable(weighting):
        raise InputError(
            f"Parameter `weighting` should be callable on a Gram matrix, as torchjd.aggregation.UPGradWeighting() is. "
            f"Found {type(weighting).__name__}."
        )
    if any(base.__name__ == "Aggregator" for base in type(weighting).__mro__):
        raise InputError(
            f"Parameter `weighting` should be a weighting, not an aggregator: {type(weighting).__name__} returns a "
            f"direction; use {type(weighting).__name__}Weighting()."
        )
    return GramianRule(weighting)

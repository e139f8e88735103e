"""Per-class normalization."""

from __future__ import annotations

from typing import get_args

from torch import Tensor

from classgrad._errors import InputError
from classgrad.rules._rule import ClassStatistics, Rule, Scope, inverse, required


class Normalize(Rule):
    """PCN (Eq. PCNGD, Algs. 1-3): step along Σ_l g_l/‖g_l‖, so w_l = 1/‖g_l‖.

    ``per="model"`` takes the norm over the whole parameter vector, as in the paper; ``"layer"`` and ``"parameter"``
    normalize each layer or tensor by itself. ``eps`` is added to the norms (the authors' code adds 1e-6 to those of
    *summed* gradients); the default 0 is the paper's.

    >>> import torch
    >>> norms = torch.tensor([4.0, 0.5])
    >>> Normalize()(ClassStatistics(torch.arange(2), norms > 0, norms))
    tensor([0.2500, 2.0000])
    """

    def __init__(self, per: Scope = "model", eps: float = 0.0) -> None:
        if per not in get_args(Scope):
            raise InputError(f"Parameter `per` should be one of {', '.join(get_args(Scope))}. Found {per!r}.")
        if not eps >= 0:
            raise InputError(f"Parameter `eps` should be at least 0. Found {eps!r}.")
        self.per = per
        self.eps = eps

    def __call__(self, statistics: ClassStatistics) -> Tensor:
        """Return the inverse norms."""
        return inverse(required(statistics.norms) + self.eps, statistics.active)

    def __repr__(self) -> str:
        return f"Normalize(per={self.per!r}, eps={self.eps})"

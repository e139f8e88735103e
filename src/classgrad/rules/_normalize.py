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

    ``refresh=k`` takes the norms from an exact step every k steps (1, the default: always) and in between makes one
    plain backward pass, each class weighed by the norm it had then times q_l/q_l(then). With ``follow`` q_l is
    Σ (1 − exp(−f_i)) over the class's examples in the batch, which for cross-entropy losses f_i is the probability
    missing from them and which the norm is nearly proportional to; without, it is their number: for other losses.
    An exact step comes sooner where a class moved by more than the factor ``drift`` since the last one, in its mean
    loss or its number of examples (``math.inf``: it never does). See
    :meth:`classgrad.gradients.ClassGradients.backward`.

    >>> import torch
    >>> norms = torch.tensor([4.0, 0.5])
    >>> Normalize()(ClassStatistics(torch.arange(2), norms > 0, norms))
    tensor([0.2500, 2.0000])
    """

    def __init__(
        self, per: Scope = "model", eps: float = 0.0, *, refresh: int = 1, drift: float = 2.0, follow: bool = True
    ) -> None:
        if per not in get_args(Scope):
            raise InputError(f"Parameter `per` should be one of {', '.join(get_args(Scope))}. Found {per!r}.")
        if not (isinstance(eps, (int, float)) and eps >= 0):
            raise InputError(f"Parameter `eps` should be at least 0. Found {eps!r}.")
        if type(refresh) is not int or refresh < 1:
            raise InputError(f"Parameter `refresh` should be a whole number of at least 1. Found {refresh!r}.")
        if refresh > 1 and per != "model":
            raise InputError(
                f"Parameter `refresh` should be 1 with per={per!r}: one backward pass has one weight per class. "
                f"Found {refresh!r}."
            )
        if not (isinstance(drift, (int, float)) and drift > 1):
            raise InputError(f"Parameter `drift` should be a factor above 1. Found {drift!r}.")
        if not isinstance(follow, bool):
            raise InputError(f"Parameter `follow` should be true or false. Found {follow!r}.")
        self.per = per
        self.eps = eps
        self.refresh = refresh
        self.drift = float(drift)
        self.follow = follow

    def __call__(self, statistics: ClassStatistics) -> Tensor:
        """Return the inverse norms."""
        norms = required(statistics.norms)
        return inverse(norms + self.eps if self.eps else norms, statistics.active)

    def __repr__(self) -> str:
        lazy = f", refresh={self.refresh}, drift={self.drift}, follow={self.follow}" if self.refresh > 1 else ""
        return f"Normalize(per={self.per!r}, eps={self.eps}{lazy})"

"""The bisection algorithm of Anand et al. (1993)."""

from __future__ import annotations

import torch
from torch import Tensor

from classgrad.rules._rule import ClassStatistics, Need, Rule, inverse, required


class Bisect(Rule):
    """The direction of PCN with the length of the plain gradient (Anand 1993; paper, Sec. 2).

    >>> import torch
    >>> gram = torch.diag(torch.tensor([9.0, 16.0]))  # orthogonal, of length 3 and 4: ‖g‖ = 5
    >>> w = Bisect()(ClassStatistics(torch.arange(2), gram.diagonal() > 0, gram.diagonal().sqrt(), gram))
    >>> w * torch.tensor([3.0, 4.0])  # both classes move alike, 5/√2 each
    tensor([3.5355, 3.5355])
    """

    needs: frozenset[Need] = frozenset({"norms", "gram"})
    separable: bool = False

    def __call__(self, statistics: ClassStatistics) -> Tensor:
        """Return the PCN weights times ‖Σ g_l‖ / ‖Σ g_l/‖g_l‖‖ (zero if the unit gradients cancel up to rounding)."""
        gram, active = required(statistics.gram), statistics.active
        unit = inverse(required(statistics.norms), active)
        ones = active.to(gram.dtype)
        gram = gram.where(active[:, None] & active[None, :], gram.new_zeros(()))
        plain = (ones @ gram @ ones).clamp_min(0).sqrt()
        pcn = unit @ gram @ unit
        rounding = 4 * torch.finfo(gram.dtype).eps * ones.sum().square()
        return unit * plain * inverse(pcn, pcn > rounding).sqrt()

    def __repr__(self) -> str:
        return "Bisect()"

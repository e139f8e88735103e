"""What research asks of class gradients: the gradients themselves, and a check of the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from classgrad.gradients._combine import Terms
from classgrad.gradients.terms._terms import Term


@dataclass(frozen=True, eq=False)
class GradientTable:
    """The class gradients of a batch: for every parameter name an ``(L, *shape)`` tensor, one row per class."""

    classes: Tensor
    counts: Tensor
    losses: Tensor
    named: dict[str, Tensor]

    @property
    def matrix(self) -> Tensor:
        """All class gradients as one L × P matrix, the parameters in the model's order."""
        if not self.named:
            return torch.zeros(len(self.classes), 0)
        return torch.cat([rows.reshape(len(rows), -1) for rows in self.named.values()], 1)

    @property
    def gram(self) -> Tensor:
        """K_ij = ⟨g_i, g_j⟩."""
        return self.matrix @ self.matrix.T


@dataclass(frozen=True)
class Verification:
    """How far the engine in use is from one backward pass per class, on a batch.

    ``errors`` are relative errors per parameter: the largest of those of the class gradients, their norms and their
    sum, each over all classes together.
    """

    engine: str
    errors: dict[str, float]

    @property
    def largest(self) -> float:
        """The largest relative error over the parameters."""
        return max(self.errors.values(), default=0.0)

    def __str__(self) -> str:
        worst = max(self.errors, key=lambda name: self.errors[name], default="no parameter")
        return f"{self.engine} engine: largest relative error {self.largest:.1e} at {worst}"


def relative_errors(found: Terms, expected: Terms, names: Mapping[nn.Parameter, str]) -> dict[str, float]:
    """Compare the class gradients of every parameter, and what a step makes of them."""
    return {names[p]: _relative_error(found[p], reference) if p in found else 1.0 for p, reference in expected.items()}


def _relative_error(found: Term, expected: Term) -> float:
    weights = torch.ones_like(expected.square_norms())
    pairs = [
        (found.square_norms().sqrt(), expected.square_norms().sqrt()),
        (found.weighted(weights, False), expected.weighted(weights, False)),
        (found.dense(0, found.classes), expected.dense(0, expected.classes)),
    ]
    return max(float((a - b).norm() / b.norm().clamp_min(torch.finfo(b.dtype).tiny)) for a, b in pairs)

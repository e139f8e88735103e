"""What research asks of class gradients: the gradients themselves, and a check of the engine."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class GradientTable:
    """The class gradients of a batch: for every parameter name an (L, *shape) tensor, one row per class."""

    classes: Tensor
    counts: Tensor
    losses: Tensor
    named: dict[str, Tensor]

    @property
    def matrix(self) -> Tensor:
        """All class gradients as one L × P matrix, the parameters in the model's order."""
        if not self.named:
            return torch.zeros(len(self.classes), 0)
        return torch.cat([rows.flatten(1) for rows in self.named.values()], 1)

    @property
    def gram(self) -> Tensor:
        """K_ij = ⟨g_i, g_j⟩."""
        return self.matrix @ self.matrix.T


@dataclass(frozen=True)
class Verification:
    """How far the engine in use is from one backward pass per class, on a batch.

    ``errors`` are ‖G − G_ref‖ / ‖G_ref‖ per parameter, G holding the class gradients of all classes.
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

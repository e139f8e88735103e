"""An iterate drawn with given odds while the run goes on."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Reservoir:
    """Keeps one iterate such that in the end P(R = t) = ω_t/Σ ω (R-PCNGD), with one copy of the parameters.

    The t-th iterate takes the place of the one kept with probability ω_t/Σ_{s≤t} ω_s.
    """

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._total = 0.0
        self.step = -1
        self.kept: dict[str, Tensor] = {}

    def offer(self, step: int, odds: float, model: nn.Module) -> None:
        """Let the model at ``step`` be drawn with these odds; negative and undefined ones count as 0."""
        odds = odds if odds > 0 else 0.0
        self._total += odds
        lot = torch.rand((), generator=self._generator, dtype=torch.float64).item()
        if lot * self._total < odds or self.step < 0:
            self.step = step
            self.kept = {name: value.detach().clone() for name, value in model.state_dict().items()}

    def state_dict(self) -> dict[str, Any]:
        """Give everything as plain values and tensors."""
        return {
            "generator": self._generator.get_state(),
            "total": self._total,
            "step": self.step,
            "kept": self.kept,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where :meth:`state_dict` was called."""
        self._generator.set_state(state["generator"])
        self._total, self.step, self.kept = state["total"], state["step"], state["kept"]

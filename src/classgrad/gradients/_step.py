"""The record of one step."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

Reason = Literal["missing", "zero", "nonfinite"]


@dataclass(frozen=True, eq=False)
class Step:
    """What one call of ``backward`` or ``finalize`` saw and did; one entry per class in the order of ``classes``.

    ``losses`` are f^(l) = 1/n Σ over the class's examples, ``finite`` says whether loss and gradient of the class are,
    ``norms`` are ‖∇f^(l)‖ (None where nothing asked for them, and on a step that went by remembered ones, under a rule
    with ``refresh``: a norm told is never an old one), ``gram`` is K_ij = ⟨g_i, g_j⟩ (None unless asked for)
    and ``weights`` those of the direction Σ_l w_l g_l written to ``p.grad``. With a rule per layer or per parameter
    ``weights`` has one row for each of them.
    """

    classes: Tensor
    counts: Tensor
    losses: Tensor
    weights: Tensor
    finite: Tensor
    norms: Tensor | None = None
    gram: Tensor | None = None
    projections: Tensor | None = None

    @cached_property
    def skipped(self) -> dict[int, Reason]:
        """The classes that took no part in the step, each with its reason.

        ``"missing"``: declared but not in the batch; ``"nonfinite"``: its loss or gradient holds inf or NaN;
        ``"zero"``: its gradient vanishes, so it has no direction (told only where norms are worked out).
        """
        zero = torch.zeros_like(self.finite) if self.norms is None else self.norms == 0
        rows = zip(self.classes.tolist(), self.counts.tolist(), self.finite.tolist(), zero.tolist(), strict=True)
        reasons: dict[int, Reason] = {}
        for label, count, is_finite, is_zero in rows:
            if not count:
                reasons[label] = "missing"
            elif not is_finite:
                reasons[label] = "nonfinite"
            elif is_zero:
                reasons[label] = "zero"
        return reasons


def values_of(step: Step) -> dict[str, Tensor]:
    """Return the tensors of a step by their names."""
    return {f.name: value for f in fields(step) if (value := getattr(step, f.name)) is not None}

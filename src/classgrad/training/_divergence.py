"""Noticing inf and NaN without waiting for the device at every step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from classgrad.gradients import Step

_EVERY = 32


class Diverged(ArithmeticError):
    """A loss or a gradient is inf or NaN; the message names step, class and learning rate."""


class Watch:
    """Looks at the class losses and norms of the last steps, many at a time, and names the first that is not finite."""

    def __init__(self, classes: Sequence[str]) -> None:
        self._classes = classes
        self._noted: list[tuple[int, float, Step]] = []

    def note(self, number: int, lr: float, step: Step) -> None:
        """Remember a step, and look at those remembered when there are enough."""
        self._noted.append((number, lr, step))
        if len(self._noted) >= _EVERY:
            self.check()

    def check(self) -> None:
        """Raise :class:`Diverged` for the first step with a value that is not finite."""
        noted, self._noted = self._noted, []
        if noted and not bool(torch.cat([_values(step) for _, _, step in noted]).isfinite().all()):
            for number, lr, step in noted:
                self._blame(number, lr, step)

    def check_losses(self, number: int, lr: float, losses: Tensor, counts: Tensor) -> None:
        """Raise :class:`Diverged` if the training loss of a class that has examples is not finite."""
        bad = (~losses.isfinite() & (counts > 0)).nonzero().flatten().tolist()
        if bad:
            raise Diverged(self._message(number, lr, bad[0], "loss", losses[bad[0]]))

    def _blame(self, number: int, lr: float, step: Step) -> None:
        for what, values in (("loss", step.losses), ("gradient norm", step.norms)):
            bad = [] if values is None else (~values.isfinite()).nonzero().flatten().tolist()
            if values is not None and bad:
                raise Diverged(self._message(number, lr, int(step.classes[bad[0]]), what, values[bad[0]]))

    def _message(self, number: int, lr: float, label: int, what: str, value: Tensor) -> str:
        return (
            f"diverged at step {number}: the {what} of class {self._classes[label]!r} is {float(value)} "
            f"at learning rate {lr:g}; use a smaller one"
        )


def _values(step: Step) -> Tensor:
    return step.losses if step.norms is None else torch.cat([step.losses, step.norms.to(step.losses)])

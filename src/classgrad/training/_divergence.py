"""Noticing inf and NaN without waiting for the device at every step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from classgrad.training._update import Update

_EVERY = 32
_MOST = 2**20  # values held until then


class Diverged(ArithmeticError):
    """A loss or a gradient is inf or NaN; the message names step, class and learning rate."""


class Watch:
    """Looks at the losses and norms of the last updates, many at a time, and names the first that is not finite."""

    def __init__(self, classes: Sequence[str]) -> None:
        self._classes = classes
        self._noted: list[Update] = []
        self._held = 0

    def note(self, update: Update) -> None:
        """Remember an update, and look at those remembered when there are enough."""
        self._noted.append(update)
        self._held += update.size
        if len(self._noted) >= _EVERY or self._held > _MOST:
            self.check()

    def check(self) -> None:
        """Raise :class:`Diverged` for the first update with a value that is not finite."""
        noted, self._noted, self._held = self._noted, [], 0
        values = [value.flatten().float() for update in noted for value in update.watched]
        if values and not bool(torch.cat(values).isfinite().all()):
            for update in noted:
                self._blame(update)

    def check_losses(self, number: int, lr: float, losses: Tensor, counts: Tensor) -> None:
        """Raise :class:`Diverged` if the training loss of a class that has examples is not finite."""
        bad = (~losses.isfinite() & (counts > 0)).nonzero().flatten().tolist()
        if bad:
            raise Diverged(self._message(number, lr, bad[0], "loss", losses[bad[0]]))

    def _blame(self, update: Update) -> None:
        step = update.facts(len(self._classes))
        for what, values in (("loss", step.losses), ("gradient norm", step.norms)):
            bad = [] if values is None else (~values.isfinite()).nonzero().flatten().tolist()
            if values is not None and bad:
                label = int(step.classes[bad[0]])
                raise Diverged(self._message(update.number, update.lr, label, what, values[bad[0]]))

    def _message(self, number: int, lr: float, label: int, what: str, value: Tensor) -> str:
        return (
            f"diverged at step {number}: the {what} of class {self._classes[label]!r} is {float(value)} "
            f"at learning rate {lr:g}; use a smaller one"
        )

"""Noticing inf and NaN without waiting for the device at every step."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from classgrad.training._update import Update


class Diverged(ArithmeticError):
    """A loss or a gradient is inf or NaN; the message names step, class and learning rate."""


class Watch:
    """Looks at the loss and norms of every update and names the first that is not finite.

    ``every`` updates are looked at together: on a GPU each look waits for the device.
    """

    def __init__(self, classes: Sequence[str], every: int = 1) -> None:
        self._classes = classes
        self._every = every
        self._noted: list[tuple[Tensor, Update]] = []

    def note(self, update: Update) -> None:
        """Remember an update, and look at those remembered when there are enough."""
        if self._every == 1:
            if not math.isfinite(update.watched.item()):
                self._blame(update)
            return
        self._noted.append((update.watched.detach(), update))
        if len(self._noted) >= self._every:
            self.check()

    def check(self) -> None:
        """Raise :class:`Diverged` for the first update with a value that is not finite."""
        noted, self._noted = self._noted, []
        if noted and not bool(torch.stack([watched for watched, _ in noted]).isfinite().all()):
            for _, update in noted:
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

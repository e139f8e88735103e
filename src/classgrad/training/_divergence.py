"""Noticing inf and NaN, and keeping what every step knows, without waiting for the device at every step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from classgrad.gradients import Step
from classgrad.training._mailbox import Mailbox
from classgrad.training._update import ClassFacts, Update, by_class, plain_losses

Record = Callable[[int, dict[str, Tensor | float]], None]


class Diverged(ArithmeticError):
    """A loss or a gradient is inf or NaN; the message names step, class and learning rate."""


class Watch:
    """Looks at the losses and norms of every update, names the first that is not finite, and records the others.

    ``every`` updates are looked at together, and then when the ``mailbox`` delivers what they saw: a GPU is not
    waited for. ``record``, if set, is given the number of each update and its cheap quantities.
    """

    def __init__(self, classes: Sequence[str], mailbox: Mailbox, every: int = 1) -> None:
        self._classes = classes
        self._mailbox = mailbox
        self._every = every
        self._noted: list[tuple[int, float, _Kept]] = []
        self.record: Record | None = None

    def note(self, update: Update) -> None:
        """Remember an update, and send off those remembered when there are enough."""
        if self._every == 1:
            if not math.isfinite(update.watched.item()):
                self._blame(update.number, update.lr, update.facts(len(self._classes)))
            if self.record is not None:
                self._tell(update.number, update.lr, update.facts(len(self._classes)))
            return
        kept = _keep(update)
        if self._noted and [part.shape for part in kept] != [part.shape for part in self._noted[-1][2]]:
            self.check()
        self._noted.append((update.number, update.lr, kept))
        if len(self._noted) >= self._every:
            self.check()

    def check(self) -> None:
        """Send off the updates remembered; :class:`Diverged` is raised where they are delivered."""
        noted, self._noted = self._noted, []
        if noted:
            parts = [torch.stack(part) for part in zip(*(kept for _, _, kept in noted), strict=True)]
            rates = [(number, lr) for number, lr, _ in noted]
            self._mailbox.send(
                dict(zip(("classes", "losses", "norms"), self._facts(parts), strict=False)),
                lambda found: self._look(rates, found),
            )

    def check_losses(self, number: int, lr: float, losses: Tensor, counts: Tensor) -> None:
        """Raise :class:`Diverged` if the training loss of a class that has examples is not finite."""
        bad = (~losses.isfinite() & (counts > 0)).nonzero().flatten().tolist()
        if bad:
            raise Diverged(self._message(number, lr, bad[0], "loss", losses[bad[0]]))

    def _facts(self, parts: list[Tensor]) -> list[Tensor]:
        """Give the classes, their losses and, where they are known, their norms, with one row for each update."""
        if parts[0].dim() == 2:
            return parts
        logits, labels = parts
        numbers = torch.arange(len(self._classes), device=labels.device)
        return [numbers.expand(len(labels), -1), plain_losses(logits, labels, len(self._classes))]

    def _look(self, rates: list[tuple[int, float]], found: dict[str, Any]) -> None:
        norms = found.get("norms")
        healthy = bool(found["losses"].isfinite().all()) and (norms is None or bool(norms.isfinite().all()))
        if healthy and self.record is None:
            return
        for row, (number, lr) in enumerate(rates):
            losses = found["losses"][row]
            facts = ClassFacts(found["classes"][row], losses, losses, None if norms is None else norms[row])
            self._blame(number, lr, facts)
            self._tell(number, lr, facts)

    def _tell(self, number: int, lr: float, facts: ClassFacts) -> None:
        if self.record is not None:
            self.record(number, every_step(lr, facts, len(self._classes)))

    def _blame(self, number: int, lr: float, facts: ClassFacts) -> None:
        for what, values in (("loss", facts.losses), ("gradient norm", facts.norms)):
            bad = [] if values is None else (~values.isfinite()).nonzero().flatten().tolist()
            if values is not None and bad:
                label = int(facts.classes[bad[0]])
                raise Diverged(self._message(number, lr, label, what, values[bad[0]]))

    def _message(self, number: int, lr: float, label: int, what: str, value: Tensor) -> str:
        return (
            f"diverged at step {number}: the {what} of class {self._classes[label]!r} is {float(value)} "
            f"at learning rate {lr:g}; use a smaller one"
        )


_Kept = tuple[Tensor, ...]


def _keep(update: Update) -> _Kept:
    """Copy what the next update overwrites: classes, losses and norms, or the logits and labels of a plain step."""
    seen = update.seen
    if not isinstance(seen, Step):
        return seen.logits.detach().clone(), seen.labels.clone()
    kept = (seen.classes.clone(), seen.losses.detach().clone())
    return kept if seen.norms is None else (*kept, seen.norms.detach().clone())


def every_step(lr: float, facts: ClassFacts, classes: int) -> dict[str, Tensor | float]:
    """Give what an update knows anyway: learning rate, f^(l) of the batch, norms where the rule asked for them."""
    values: dict[str, Tensor | float] = {"lr": lr, "loss": by_class(facts.losses, facts.classes, classes)}
    if facts.norms is not None:
        values["norms"] = by_class(facts.norms, facts.classes, classes)
    return values

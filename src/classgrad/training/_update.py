"""What one update saw and did."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from classgrad.dynamics import class_loss_sums
from classgrad.gradients import Step


@dataclass(frozen=True)
class ClassFacts:
    """Class by class, for the labels ``classes`` present: f^(l), the weights, and the norms where they are known."""

    classes: Tensor
    losses: Tensor
    weights: Tensor
    norms: Tensor | None


@dataclass(frozen=True)
class Update:
    """One update: its number, its learning rate and what it saw.

    That is the step along the class gradients or, for the plain gradient, which never tells the classes apart, the
    logits of the examples and their labels.
    """

    number: int
    lr: float
    seen: Step | tuple[Tensor, Tensor]

    @property
    def watched(self) -> list[Tensor]:
        """Everything that must be finite."""
        if isinstance(self.seen, Step):
            return [self.seen.losses] if self.seen.norms is None else [self.seen.losses, self.seen.norms]
        return [self.seen[0]]

    @property
    def size(self) -> int:
        """How many numbers are held."""
        return (self.seen.losses if isinstance(self.seen, Step) else self.seen[0]).numel()

    @property
    def loss(self) -> Tensor:
        """The loss of the batch."""
        return self.seen.losses.sum() if isinstance(self.seen, Step) else F.cross_entropy(*self.seen)

    def facts(self, classes: int) -> ClassFacts:
        """Tell the classes apart."""
        if isinstance(self.seen, Step):
            return ClassFacts(self.seen.classes, self.seen.losses, self.seen.weights, self.seen.norms)
        logits, labels = self.seen
        losses = F.cross_entropy(logits, labels, reduction="none")
        present = torch.bincount(labels, minlength=classes).nonzero().flatten()
        sums = class_loss_sums(losses, labels, classes)[present] / len(labels)
        return ClassFacts(present, sums, torch.ones_like(sums), None)

"""What one update saw and did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

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


class PlainStep(NamedTuple):
    """A step along the plain gradient, which never tells the classes apart: the batch's loss, its logits and labels."""

    loss: Tensor
    logits: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Update:
    """One update: its number, its learning rate, and the step along the class gradients or the plain one."""

    number: int
    lr: float
    seen: Step | PlainStep

    @property
    def loss(self) -> Tensor:
        """The loss of the batch."""
        return self.seen.losses.sum() if isinstance(self.seen, Step) else self.seen.loss

    @property
    def watched(self) -> Tensor:
        """A number that is finite as long as nothing diverges."""
        if isinstance(self.seen, Step) and self.seen.norms is not None:
            return self.loss + self.seen.norms.sum().to(self.seen.losses)
        return self.loss

    def facts(self, classes: int) -> ClassFacts:
        """Tell the classes apart."""
        if isinstance(self.seen, Step):
            return ClassFacts(self.seen.classes, self.seen.losses, self.seen.weights, self.seen.norms)
        _, logits, labels = self.seen
        losses = F.cross_entropy(logits.detach(), labels, reduction="none")
        present = torch.bincount(labels, minlength=classes).nonzero().flatten()
        sums = class_loss_sums(losses, labels, classes)[present] / len(labels)
        return ClassFacts(present, sums, torch.ones_like(sums), None)

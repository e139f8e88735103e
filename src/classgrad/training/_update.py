"""What one update saw and did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

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
    """One update: its number, its learning rate, and the step along the class gradients or the plain one.

    On a GPU the tensors of ``seen`` are overwritten by the next update.
    """

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
        numbers = torch.arange(classes, device=labels.device)
        weights = (labels == numbers[:, None]).any(-1).double()
        return ClassFacts(numbers, plain_losses(logits.detach(), labels, classes), weights, None)


def plain_losses(logits: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Give f^(l) of every class, 0 for those absent: logits (..., N, L) and labels (..., N) to (..., L)."""
    losses = F.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none").view(labels.shape)
    members = labels.unsqueeze(-2) == torch.arange(classes, device=labels.device).unsqueeze(-1)
    return torch.where(members, losses.double().unsqueeze(-2), 0.0).sum(-1) / labels.shape[-1]


def by_class(values: Tensor, present: Tensor, classes: int) -> Tensor:
    """Spread the values of the classes present over all classes, 0 for the others."""
    spread = torch.zeros(classes, dtype=torch.float64, device=values.device)
    spread[present.to(values.device)] = values.double()
    return spread

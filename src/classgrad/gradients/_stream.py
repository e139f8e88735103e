"""Classes one after the other, with two gradient buffers whatever their number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import torch
from torch import Tensor, nn

from classgrad._errors import InputError
from classgrad.gradients._combine import Reference, Wishes, combine
from classgrad.gradients._layout import ClassLayout
from classgrad.gradients._step import Step
from classgrad.gradients._terms import Dense, Memory
from classgrad.rules import Rule

Direction = dict[nn.Parameter, Tensor]


class ClassStream:
    """Sums the gradients of the class at hand and folds each finished class into the direction.

    What is added is ``scale`` times the gradient of 1/total Σ losses, ``total`` being the number n of examples of all
    classes, so that the finished sums are the class gradients and the direction comes back times ``scale``.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        scopes: Sequence[int],
        rule: Rule,
        wishes: Wishes,
        total: int,
        scale: Tensor | float = 1.0,
        reference: Reference | None = None,
    ) -> None:
        if not rule.separable or wishes.gram:
            raise InputError(
                "Classes can be streamed one by one only under a rule that weighs each by itself and without `gram`. "
                f"Found rule {rule!r}, gram={wishes.gram}."
            )
        self.parameters = parameters
        self.scopes = scopes
        self.rule = rule
        self.wishes = wishes
        self.total = total
        self.scale = scale
        self.reference = reference
        self.direction: Direction = {}
        self._steps: dict[int, Step] = {}
        self._label: int | None = None
        self._count = 0
        self._loss: Tensor | None = None
        self._sums: dict[nn.Parameter, Tensor] = {}

    def add(self, label: int, losses: Tensor, gradients: Sequence[Tensor | None]) -> None:
        """Add examples of one class: their losses and the gradient of scale/total Σ losses."""
        if label != self._label:
            self._fold()
            if label in self._steps:
                raise InputError(
                    f"Class {label} came back after another class; with `total` given, send micro-batches class by "
                    "class."
                )
            self._label = label
        self._count += len(losses)
        loss = losses.detach().sum()
        self._loss = loss if self._loss is None else self._loss + loss
        for p, gradient in zip(self.parameters, gradients, strict=True):
            if gradient is None:
                continue
            if p in self._sums:
                self._sums[p] += gradient
            else:
                self._sums[p] = gradient

    def _fold(self) -> None:
        """Weigh the class at hand and add it to the direction."""
        if self._label is None or self._loss is None:
            return
        device = self._loss.device
        layout = ClassLayout(
            torch.tensor([self._label], device=device), torch.zeros(self._count, dtype=torch.int64, device=device)
        )
        step, direction = combine(
            {p: Dense(s[None], Memory(0)) for p, s in self._sums.items()},
            [s for p, s in zip(self.parameters, self.scopes, strict=True) if p in self._sums],
            self.rule,
            self._loss[None] / self.total,
            layout,
            self.wishes,
            factor=self.scale,
            target=self.scale,
            reference=self.reference,
        )
        self._steps[self._label] = step
        for p, part in direction.items():
            if p in self.direction:
                self.direction[p] += part
            else:
                self.direction[p] = part
        self._label, self._count, self._loss, self._sums = None, 0, None, {}

    def finish(self) -> tuple[Step, Direction]:
        """Return the record over all classes, in ascending order, and the direction."""
        self._fold()
        steps = [self._steps[label] for label in sorted(self._steps)]
        joined = {
            field.name: torch.cat(values, -1) if values and values[0] is not None else None
            for field in fields(Step)
            for values in [[getattr(step, field.name) for step in steps]]
        }
        return Step(**joined), self.direction  # type: ignore[arg-type]  # the first four are never None

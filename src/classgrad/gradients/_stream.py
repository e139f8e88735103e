"""Classes one after the other, with two gradient buffers whatever their number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import torch
from torch import Tensor, nn

from classgrad._errors import InputError
from classgrad.gradients._combine import Reference, Scopes, Wishes, combine, handed_out, refuse
from classgrad.gradients._layout import one_class
from classgrad.gradients._step import Step
from classgrad.gradients.terms._terms import Dense, Memory, promote
from classgrad.rules import Rule

Direction = dict[nn.Parameter, Tensor]


class ClassStream:
    """Sums the gradients of the class at hand and folds each finished class into the direction.

    ``total`` is the number n of examples of all classes, ``scopes`` holds the parameters that take part and ``classes``
    those that must be reported even if they never come.
    """

    def __init__(
        self,
        scopes: Scopes,
        rule: Rule,
        wishes: Wishes,
        total: int,
        classes: Sequence[int] = (),
        reference: Reference | None = None,
    ) -> None:
        if not rule.separable or wishes.gram:
            raise InputError(
                "Classes can be streamed one by one only under a rule that weighs each by itself and without `gram`. "
                f"Found rule {rule!r}, gram={wishes.gram}."
            )
        if type(total) is not int or total < 1:
            raise InputError(f"Parameter `total` should be the number of examples of the whole step. Found {total!r}.")
        self.scopes = scopes
        self.rule = rule
        self.wishes = wishes
        self.total = total
        self.classes = classes
        self.reference = reference
        self.direction: Direction = {}
        self._steps: dict[int, Step] = {}
        self._label: int | None = None
        self._count = 0
        self._seen = 0
        self._loss = torch.zeros(())
        self._sums: dict[nn.Parameter, Tensor] = {}

    def add(self, label: int, losses: Tensor, gradients: Sequence[Tensor | None], scale: Tensor | float = 1.0) -> None:
        """Add examples of one class: their losses and, for each parameter, the gradient of scale/total Σ losses."""
        if label != self._label:
            self._fold()
            if label in self._steps:
                raise InputError(
                    f"Class {label} came back after another class; with `total` given, send micro-batches class by "
                    "class."
                )
            self._label, self._count, self._loss, self._sums = label, 0, losses.new_zeros(()), {}
        self._count += len(losses)
        self._loss = self._loss + losses.detach().sum()
        for p, gradient in zip(self.scopes, gradients, strict=True):
            if gradient is None:
                continue
            part = promote(gradient.to_dense()) if isinstance(scale, float) else promote(gradient.to_dense()) / scale
            # Out of place: autograd may hand out one tensor for two parameters, or one number for all elements.
            self._sums[p] = self._sums[p] + part if p in self._sums else part

    def _fold(self) -> None:
        """Weigh the class at hand and add it to the direction."""
        if self._label is None:
            return
        step, found = combine(
            {p: Dense(s[None], Memory(0)) for p, s in self._sums.items()},
            self.scopes,
            self.rule,
            self._loss[None] / self.total,
            one_class(self._label, self._count, self._loss.device),
            replace(self.wishes, on_missing="skip", on_nonfinite="skip"),  # refused at the end, if at all
            reference=self.reference,
        )
        self._steps[self._label] = step
        self._seen += self._count
        for p, part in handed_out(found).items():
            if p in self.direction:
                self.direction[p] += part
            else:
                self.direction[p] = part

    def finish(self) -> tuple[Step, Direction]:
        """Return the record over all classes, in ascending order, and the direction."""
        for label in self.classes:
            if label != self._label and label not in self._steps:
                self.add(label, self._loss.new_zeros(0), [None] * len(self.scopes))
        self._fold()
        steps = [self._steps[label] for label in sorted(self._steps)]
        joined = {
            field.name: None if values[0] is None else torch.cat(values, -1)
            for field in fields(Step)
            for values in [[getattr(step, field.name) for step in steps]]
        }
        step = Step(**joined)  # type: ignore[arg-type]  # the first five are never None
        if self._seen != self.total:
            raise InputError(
                "Parameter `total` should be the number of examples of the whole step. "
                f"Found {self.total}, but {self._seen} came."
            )
        refuse(step, self.wishes)
        return step, self.direction

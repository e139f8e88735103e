"""Preference weights on top of any rule."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import index

import torch
from torch import Tensor

from classgrad._errors import InputError
from classgrad.rules._rule import ClassStatistics, Rule


class Prefer(Rule):
    """Multiply the weights of ``rule`` by a preference per class.

    ``preferences`` is a mapping from class label to weight (labels not named keep 1), or a sequence indexed by label.

    >>> from classgrad.rules import Sum
    >>> rule = Prefer(Sum(), {1: 3.0})
    >>> rule(ClassStatistics(torch.tensor([0, 1, 5]), torch.tensor([True, True, True])))
    tensor([1., 3., 1.])
    """

    def __init__(self, rule: Rule, preferences: Mapping[int, float] | Sequence[float]) -> None:
        if not isinstance(rule, Rule):
            raise InputError(f"Parameter `rule` should be a rule such as Normalize(). Found {rule!r}.")
        try:
            pairs = preferences.items() if isinstance(preferences, Mapping) else enumerate(preferences)
            self.preferences = {index(label): float(value) for label, value in pairs}
        except (TypeError, ValueError):
            raise InputError(
                f"Parameter `preferences` should map labels to weights, or list weights. Found {preferences!r}."
            ) from None
        self.rule = rule
        for label, value in self.preferences.items():
            if not (math.isfinite(value) and value >= 0):
                raise InputError(
                    f"Parameter `preferences` should hold finite weights of at least 0. "
                    f"Found {value!r} for class {label}."
                )
        self.needs = rule.needs
        self.separable = rule.separable
        self.per = rule.per
        self.refresh = rule.refresh
        self.drift = rule.drift
        self.follow = rule.follow

    def __call__(self, statistics: ClassStatistics) -> Tensor:
        """Return the wrapped rule's weights, each times its class's preference."""
        weights = self.rule(statistics)
        for label, value in self.preferences.items():
            weights = torch.where(statistics.classes == label, weights * value, weights)
        return weights

    def __repr__(self) -> str:
        return f"Prefer({self.rule!r}, {self.preferences!r})"

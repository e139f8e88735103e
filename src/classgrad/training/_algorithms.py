"""The algorithms as data: batches, rule, step sizes. One loop runs all of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from classgrad._errors import InputError
from classgrad.rules import Bisect, Normalize, Rescale, Rule, Sum

Batches = Literal["full", "shuffled", "proportional", "balanced"]


@dataclass(frozen=True)
class Algorithm:
    """A row of the table: which batches, how the class gradients are weighed, which step sizes, which iterate is kept.

    ``returns`` is the last iterate, or one drawn with P_R(t) ∝ ω_t. ``composition`` is the make of the training set
    in the authors' protocol, whose "+O" runs see new minority images.
    """

    name: str
    batches: Batches
    rule: Callable[..., Rule]
    summary: str
    options: Mapping[str, Any] = field(default_factory=dict)
    schedule: str = "constant"
    returns: Literal["last", "drawn"] = "last"
    composition: Literal["proportional", "balanced"] = "proportional"

    @property
    def full_batch(self) -> bool:
        """Whether every step sees the whole training set."""
        return self.batches == "full"

    def make_rule(self) -> Rule:
        """Make the rule with its options."""
        return self.rule(**self.options)


ALGORITHMS: dict[str, Algorithm] = {
    row.name: row
    for row in (
        Algorithm("gd", "full", Sum, "gradient descent (App. C)"),
        Algorithm("pcngd", "full", Normalize, "per-class normalized gradient descent (Alg. 1)"),
        Algorithm("sgd", "shuffled", Sum, "stochastic gradient descent on shuffled, mixed batches (Sec. 5)"),
        Algorithm("pcnsgd", "proportional", Normalize, "per-class normalized, every class in every batch (Alg. 2)"),
        Algorithm("pcnsgd+r", "proportional", Rescale, "PCNSGD with the directional noise undone (Alg. 5)"),
        Algorithm("sgd+o", "balanced", Sum, "SGD on batches of equal classes, minority repeated (Alg. 4)"),
        Algorithm("pcnsgd+o", "balanced", Normalize, "PCNSGD on batches of equal classes (Alg. 3)"),
        Algorithm("r-pcngd", "full", Normalize, "PCNGD, returns an iterate drawn with P_R ∝ ω_t", returns="drawn"),
        Algorithm("bisection", "full", Bisect, "PCNGD's direction at the gradient's length (Anand 1993)"),
    )
}
"""Every algorithm by its name, as the paper's text has it."""

SEVEN = ("gd", "pcngd", "sgd", "pcnsgd", "pcnsgd+r", "sgd+o", "pcnsgd+o")
"""The seven algorithms the paper compares."""

AUTHORS: dict[str, dict[str, Any]] = {
    "sgd": {"batches": "proportional"},
    "pcnsgd": {"schedule": "authors-decay"},
    "pcnsgd+r": {"options": {"every": 1, "form": "authors"}},
    "sgd+o": {"schedule": "authors-decay", "composition": "balanced"},
    "pcnsgd+o": {"schedule": "authors-decay", "composition": "balanced"},
}
"""Where the authors' released code differs from the text."""


def algorithm(name: str, *, protocol: str = "paper", **options: Any) -> Algorithm:
    """Look an algorithm up; ``options`` go to its rule, such as ``every=10`` for ``pcnsgd+r``.

    ``protocol="authors"`` gives what the released code does in place of what the paper's text says.

    >>> algorithm("pcnsgd+r", every=10).make_rule()
    Rescale(every=10, floor=0.1, on_negative='skip', form='paper')
    """
    row = ALGORITHMS.get(name)
    if row is None:
        raise InputError(f"Parameter `algorithm` should be one of {', '.join(ALGORITHMS)}. Found {name!r}.")
    if protocol == "authors":
        row = replace(row, **AUTHORS.get(name, {}))
    elif protocol != "paper":
        raise InputError(f"Parameter `protocol` should be paper or authors. Found {protocol!r}.")
    if not options:
        return row
    known = list(inspect.signature(row.rule).parameters)
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise InputError(f"Algorithm {name!r} takes the options: {', '.join(known) or 'none'}. Found {unknown[0]!r}.")
    chosen = replace(row, options={**row.options, **options})
    chosen.make_rule()  # its own checks of the values
    return chosen

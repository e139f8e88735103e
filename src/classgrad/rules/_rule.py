"""What a rule is: a pure function from the statistics of the class gradients to one weight per class."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

Need = Literal["norms", "gram", "projections"]
Scope = Literal["model", "layer", "parameter"]


@dataclass(frozen=True, eq=False)
class ClassStatistics:
    """What a rule may look at; every tensor has one entry per class, in the order of ``classes``.

    ``active`` is False for a class that takes no part in the step (absent, zero gradient or not finite); a rule may
    ignore it for its own weights, which the engine sets to zero for such classes, but must not let those classes
    reach the weights of others.
    """

    classes: Tensor
    active: Tensor
    norms: Tensor | None = None
    gram: Tensor | None = None
    projections: Tensor | None = None


class Rule(ABC):
    """The weights w of the update direction Σ_l w_l g_l."""

    needs: frozenset[Need] = frozenset({"norms"})
    separable: bool = True
    """Whether a class's weight depends on that class alone, so that classes can be streamed one by one."""
    per: Scope = "model"
    """Whether statistics are of the whole parameter vector (as in the paper), of each layer or of each tensor."""
    refresh: int = 1
    """Every how many steps the norms are taken anew; those in between go by the remembered ones, as one plain weighted
    backward pass. Above 1 this is for rules that need the norms over the whole model and nothing else."""
    drift: float = math.inf
    """The factor by which a class may move before its norms are taken anew ahead of time."""
    follow: bool = True
    """Whether remembered norms follow the losses of the batch at hand, as those of a cross-entropy do."""

    @abstractmethod
    def __call__(self, statistics: ClassStatistics) -> Tensor:
        """Return one weight per class."""


def required(value: Tensor | None) -> Tensor:
    """Return a statistic that the rule's ``needs`` promised."""
    if value is None:
        raise RuntimeError("a rule read a statistic it does not list in `needs`")
    return value


def inverse(values: Tensor, where: Tensor) -> Tensor:
    """Return 1 / values where asked, 0 elsewhere, without ever dividing by zero.

    >>> import torch
    >>> inverse(torch.tensor([2.0, 0.0]), torch.tensor([True, False]))
    tensor([0.5000, 0.0000])
    """
    return values.masked_fill(~where, math.inf).reciprocal()

"""Step sizes by name: the learning rate of a step as a pure function of where the run is.

``lr`` is the number the user gives; what it stands for is said with every schedule. Those that depend on measured
quantities (C_t, cos α) read them off the Gram matrix of the step's class gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from classgrad._errors import InputError
from classgrad.theory import dominated_steps, gd_steps, second_steps


@dataclass(frozen=True, eq=False)
class Moment:
    """What a step size may depend on: the step t of T, completed epochs, the user's ``lr``, the step's Gram matrix."""

    step: int
    steps: int
    epoch: int
    lr: float
    gram: Tensor | None = None
    options: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Schedule:
    """A named step size: ``function`` of the :class:`Moment`, the ``options`` it takes, and where it comes from."""

    function: Callable[[Moment], Tensor | float]
    summary: str
    needs_gram: bool = False
    options: tuple[str, ...] = ()

    def __call__(self, moment: Moment) -> float:
        """Give η_t."""
        return float(self.function(moment))


def constant(moment: Moment) -> float:
    """η = lr."""
    return moment.lr


def inverse_sqrt(moment: Moment) -> float:
    """η = c/√T with c = lr (Th. 2 and Th. PCNSGD).

    >>> inverse_sqrt(Moment(step=3, steps=100, epoch=0, lr=0.5))
    0.05
    """
    return moment.lr / math.sqrt(moment.steps)


def gd_theorem(moment: Moment) -> Tensor | float:
    """η_t = min(min_l (1 + C_t cos α)/(2 (1 + C_t²) L_2), c/√T) with c = lr (Th. 1)."""
    return gd_steps(_smoothness(moment), inverse_sqrt(moment))(moment.step, _gram(moment))


def gd_alternate(moment: Moment) -> Tensor | float:
    """η_t = min_l (1 + C_t cos α)/(2 (1 + C_t²) L_2), independent of T and at most lr (Th. "GD_alternate_step_size").

    It is the step for which the theorem's ω is largest.
    """
    return gd_steps(_smoothness(moment), moment.lr)(moment.step, _gram(moment))


def pcngd_second(moment: Moment) -> Tensor | float:
    """η_t = c/(ω_t √T) with c = lr and ω_t = 1 + cos α, the least of all classes (second version of Th. 2)."""
    return second_steps(moment.lr, moment.steps)(moment.step, _gram(moment))


def dominated_decreasing(moment: Moment) -> Tensor | float:
    """η_t = (2t+1)/(C (t+1)²) with C = 1/lr, so that the first step is lr (Th. 3, decreasing).

    >>> dominated_decreasing(Moment(step=0, steps=9, epoch=0, lr=0.5))
    0.5
    """
    return dominated_steps(1 / moment.lr)(moment.step, torch.empty(0))


def dominated_constant(moment: Moment) -> float:
    """η = c/C with C = 1/lr and the option ``c`` below 1, 0.5 if not given (Th. 3, constant)."""
    return moment.options.get("c", 0.5) * moment.lr


def authors_decay(moment: Moment) -> float:
    """Lr times 0.1, 0.01, ... from epoch 7, 79, 799, ... on: the decay hidden in the authors' released code.

    >>> [authors_decay(Moment(step=0, steps=1, epoch=e, lr=1.0)) for e in (6, 7, 79)]
    [1.0, 0.1, 0.01]
    """
    return moment.lr / math.pow(10, int(1 + math.log10((moment.epoch + 1) / 8)))


SCHEDULES: dict[str, Schedule] = {
    "constant": Schedule(constant, "lr at every step"),
    "inverse-sqrt": Schedule(inverse_sqrt, "lr/√T (Th. 2)"),
    "gd-theorem": Schedule(gd_theorem, "Th. 1, capped by lr/√T", needs_gram=True, options=("smoothness",)),
    "gd-alternate": Schedule(gd_alternate, "Th. 1 without T, capped by lr", needs_gram=True, options=("smoothness",)),
    "pcngd-second": Schedule(pcngd_second, "lr/(ω_t √T) (Th. 2, second version)", needs_gram=True),
    "dominated-decreasing": Schedule(dominated_decreasing, "lr (2t+1)/(t+1)² (Th. 3)"),
    "dominated-constant": Schedule(dominated_constant, "c times lr, c < 1 (Th. 3)", options=("c",)),
    "authors-decay": Schedule(authors_decay, "lr, a tenth of it from epochs 7, 79, 799, ... on (released code)"),
}
"""Every schedule by its name."""


def schedule(name: str, options: Mapping[str, float] | None = None) -> Schedule:
    """Look a schedule up and check the options that go with it."""
    found = SCHEDULES.get(name)
    if found is None:
        raise InputError(f"Parameter `schedule` should be one of {', '.join(SCHEDULES)}. Found {name!r}.")
    given = dict(options or {})
    unknown = sorted(set(given) - set(found.options))
    if unknown:
        takes = ", ".join(found.options) or "none"
        raise InputError(f"Schedule {name!r} takes the options: {takes}. Found {unknown[0]!r}.")
    for option, value in given.items():
        if not (isinstance(value, (int, float)) and math.isfinite(value) and value > 0):
            raise InputError(f"Schedule option `{option}` should be a number above 0. Found {value!r}.")
    if "smoothness" in found.options and "smoothness" not in given:
        raise InputError(f"Schedule {name!r} needs the option `smoothness`, the constant L_2 of the loss.")
    if given.get("c", 0.5) >= 1:
        raise InputError(f"Schedule option `c` should be below 1. Found {given['c']!r}.")
    return found


def _smoothness(moment: Moment) -> Tensor:
    return torch.tensor(moment.options["smoothness"], dtype=torch.float64)


def _gram(moment: Moment) -> Tensor:
    assert moment.gram is not None, "the loop gives the Gram matrix to schedules that need it"
    return moment.gram.double().cpu()

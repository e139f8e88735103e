"""Run every theorem on a toy problem with the step sizes it asks for, and see whether its bound holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from classgrad.theory._conditions import RuleName, pcn_margin
from classgrad.theory._descent import descend, descend_stochastic, dominated_steps, gd_steps, second_steps
from classgrad.theory._dominated import (
    dominated_bound,
    dominated_constant_bound,
    dominated_rate,
    pl_bound,
    pl_steps,
)
from classgrad.theory._gd import gd_alternate_bound, gd_bound, gd_caps
from classgrad.theory._pcngd import pcngd_bound, pcngd_multiclass_bound, pcngd_second_bound, r_pcngd_bound
from classgrad.theory._pcnsgd import pcnsgd_bound
from classgrad.theory._problems import Examples, Problem
from classgrad.theory._records import Bound, Statement, Trajectory

Experiment = Callable[[Problem, int, Statement], Bound | None]
"""From a problem, a number of steps and a statement to the bound on a run made for it; None where it does not apply."""


@dataclass(frozen=True)
class Theorem:
    """A bound of the paper with the run it is about."""

    title: str
    """Where the paper states it."""
    experiment: Experiment
    statements: tuple[Statement, ...] = ("corrected", "printed", "sharp")
    binary: tuple[Statement, ...] = ()
    """Statements for two classes alone."""


@dataclass(frozen=True)
class CheckRow:
    """What one theorem says on one problem."""

    theorem: str
    title: str
    statement: Statement
    steps: int
    steps_met: int
    """The last horizon at which any class meets the assumptions."""
    classes: int
    classes_met: int
    """Classes that meet the assumptions at some horizon."""
    held: bool
    tightest: float

    @property
    def proved(self) -> bool:
        """Whether the statement has a proof; all have but the printed ones."""
        return self.statement != "printed"


def check(
    problem: Problem, *, steps: int = 200, statement: Statement = "corrected", theorems: Iterable[str] | None = None
) -> list[CheckRow]:
    """Run the theorems that apply to a problem, each on a run with its own step sizes.

    >>> from classgrad.theory import check, conflict
    >>> all(row.held for row in check(conflict(), steps=20))
    True
    """
    chosen = THEOREMS if theorems is None else {name: THEOREMS[name] for name in theorems}
    classes = problem.losses(problem.start).shape[-1]
    rows = []
    for name, theorem in chosen.items():
        if statement not in theorem.statements or (classes != 2 and statement in theorem.binary):
            continue
        bound = theorem.experiment(problem, steps, statement)
        if bound is not None:
            rows.append(_row(name, theorem, bound))
    return rows


def _row(name: str, theorem: Theorem, bound: Bound) -> CheckRow:
    met = bound.met.expand_as(bound.left)
    reached = met.any(-1).nonzero()
    return CheckRow(
        theorem=name,
        title=theorem.title,
        statement=bound.statement,
        steps=met.shape[-2],
        steps_met=int(reached.max()) + 1 if len(reached) else 0,
        classes=met.shape[-1],
        classes_met=int(met.any(-2).sum()),
        held=not bool(bound.violated.any()),
        tightest=bound.tightest,
    )


def _with(
    rule: RuleName,
    lr: Callable[[Problem, int], float | Tensor | Callable[[int, Tensor], Tensor | float]],
    bound: Callable[..., Bound],
) -> Experiment:
    def experiment(problem: Problem, steps: int, statement: Statement) -> Bound:
        path = descend(problem, rule, steps, lr(problem, steps))
        return bound(path, problem.constants, statement=statement)

    return experiment


def _start(problem: Problem) -> tuple[Tensor, Tensor]:
    gradients = problem.gradients(problem.start)
    return problem.losses(problem.start), gradients @ gradients.mT


def _best_c(problem: Problem) -> float:
    """Find the c that makes Th. 2's bound smallest for the class that needs the largest."""
    losses, _ = _start(problem)
    constants = problem.constants
    gap = losses - constants.minima.value
    return float((2 * gap / (losses.shape[-1] ** 2 * constants.smoothness.value)).amax().sqrt())


def _free_step(problem: Problem) -> float:
    _, gram = _start(problem)
    smallest = float(gd_caps(gram, problem.constants.smoothness.value).amin())
    return smallest / 2 if smallest > 0 else 0.1 / float(problem.constants.smoothness.value.amax())


def _rate_at_start(problem: Problem) -> float:
    losses, gram = _start(problem)
    path = Trajectory(losses.expand(2, -1), gram.unsqueeze(0), torch.ones(1))
    return float(dominated_rate(path, problem.constants).amin())


def _dominated(problem: Problem, steps: int, statement: Statement) -> Bound | None:
    """Look for the largest m that the run made with it turns out to meet: the theorem's step depends on its own run."""
    first = _rate_at_start(problem)
    if first <= 0:
        return None
    bound = None
    for halvings in range(24):
        path = descend(problem, "pcngd", steps, dominated_steps(first / 2 ** (halvings / 4)))
        bound = dominated_bound(path, problem.constants, statement=statement)
        if bool(bound.met.all()):
            break
    return bound


def _pl(problem: Problem, steps: int, _: Statement) -> Bound | None:
    """Look for an ω that the run made with it turns out to stay above."""
    if problem.pl is None:
        return None
    losses, gram = _start(problem)
    lowest = float(pcn_margin(gram).amin())
    for halvings in range(1, 9):
        omega = lowest / 2**halvings
        if omega <= 0:
            return None
        path = descend(problem, "pcngd", steps, pl_steps(steps, losses, problem.constants, problem.pl, omega))
        bound = pl_bound(path, problem.constants, problem.pl, omega)
        if bool(bound.met.all()):
            break
    return bound


def _pcnsgd(problem: Problem, steps: int, statement: Statement) -> Bound | None:
    if not isinstance(problem, Examples):
        return None
    per_class = (problem.counts / 2).ceil().long()
    lr = _best_c(problem) / steps**0.5
    drawn = descend_stochastic(problem, per_class, steps, lr, runs=64, generator=torch.Generator().manual_seed(0))
    return pcnsgd_bound(drawn.paths, problem.constants, drawn.sigma, batch_gram=drawn.batch_gram, statement=statement)


THEOREMS: dict[str, Theorem] = {
    "gd": Theorem(
        "Th. 1 formal", _with("gd", lambda p, _: gd_steps(p.constants.smoothness.value, _best_c(p)), gd_bound)
    ),
    "gd-alternate": Theorem("Th. 1, free step", _with("gd", lambda p, _: _free_step(p), gd_alternate_bound)),
    "pcngd": Theorem(
        "Th. 2 formal", _with("pcngd", lambda p, t: _best_c(p) / t**0.5, pcngd_bound), binary=("printed",)
    ),
    "pcngd-second": Theorem(
        "Th. 2, second step",
        _with("pcngd", lambda p, t: second_steps(_best_c(p), t), pcngd_second_bound),
        binary=("printed",),
    ),
    "pcngd-multiclass": Theorem(
        "Th. 2, multi-class", _with("pcngd", lambda p, t: _best_c(p) / t**0.5, pcngd_multiclass_bound)
    ),
    "r-pcngd": Theorem("R-PCNGD", _with("pcngd", lambda p, t: _best_c(p) / t**0.5, r_pcngd_bound), binary=("printed",)),
    "dominated": Theorem("Th. 3, decreasing step", _dominated, ("corrected", "printed")),
    "dominated-constant": Theorem(
        "Th. 3, constant step",
        _with("pcngd", lambda p, t: _best_c(p) / t**0.5, dominated_constant_bound),
        ("corrected", "printed"),
        binary=("printed",),
    ),
    "pl": Theorem("Th. 3 under PL", _pl, ("corrected",)),
    "pcnsgd": Theorem("Th. 4 formal", _pcnsgd, ("corrected", "sharp", "minibatch", "printed"), binary=("printed",)),
}
"""Every bound of the paper, by name."""

"""Every bound holds on thousands of problems that meet its assumptions."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from classgrad.theory import (
    Constant,
    Constants,
    Problem,
    Quadratics,
    Ramps,
    Trajectory,
    descend,
    dominated_bound,
    dominated_constant_bound,
    dominated_rate,
    gd_alternate_bound,
    gd_bound,
    gd_steps,
    pcngd_bound,
    pcngd_multiclass_bound,
    pcngd_second_bound,
    pcnsgd_bound,
    pl_bound,
    pl_steps,
    quadratic_constants,
    quadratic_pl,
    r_pcngd_bound,
    second_steps,
)

PROBLEMS = 64
"""Problems drawn at once in every example."""


@dataclass(frozen=True)
class Waves:
    """f^(l) = A_l (1 - cos(⟨v_l, x⟩ + b_l)): smooth, Lipschitz and not convex."""

    heights: Tensor
    directions: Tensor
    offsets: Tensor
    start: Tensor
    pl = None

    @property
    def constants(self) -> Constants:
        return Constants.of(self.heights * self.directions.square().sum(-1))

    def losses(self, x: Tensor) -> Tensor:
        return self.heights * (1 - self._phase(x).cos())

    def gradients(self, x: Tensor) -> Tensor:
        return (self.heights * self._phase(x).sin()).unsqueeze(-1) * self.directions

    def _phase(self, x: Tensor) -> Tensor:
        return (self.directions * x.unsqueeze(-2)).sum(-1) + self.offsets


@dataclass(frozen=True)
class Bowls:
    """f^(l) = ½ (x - a_l)ᵀ A_l (x - a_l), A_l of any positive spectrum, some with a common minimum."""

    hessians: Tensor
    centers: Tensor
    start: Tensor

    @property
    def constants(self) -> Constants:
        return quadratic_constants(self.hessians)

    @property
    def pl(self) -> Constant:
        return quadratic_pl(self.hessians)

    def losses(self, x: Tensor) -> Tensor:
        away = x.unsqueeze(-2) - self.centers
        return (away * self._slope(away)).sum(-1) / 2

    def gradients(self, x: Tensor) -> Tensor:
        return self._slope(x.unsqueeze(-2) - self.centers)

    def _slope(self, away: Tensor) -> Tensor:
        return (self.hessians @ away.unsqueeze(-1)).squeeze(-1)


@dataclass(frozen=True)
class Draw:
    """What hypothesis chooses; the numbers themselves come from one generator."""

    family: str
    seed: int
    classes: int
    dimension: int
    spread: float
    steps: int
    scale: float

    def problem(self) -> Problem:
        random = torch.Generator().manual_seed(self.seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(PROBLEMS, *shape, generator=random, dtype=torch.float64)

        shared, own = normal(1, self.dimension), normal(self.classes, self.dimension)
        vectors = shared + self.spread * own
        sizes = normal(self.classes).exp()
        start = torch.zeros(PROBLEMS, self.dimension, dtype=torch.float64)
        if self.family == "quadratics":
            return Quadratics(sizes, vectors, start)
        if self.family == "ramps":
            return Ramps(vectors, 3 * normal(self.classes).abs(), start)
        if self.family == "waves":
            return Waves(sizes, vectors, 0.5 + normal(self.classes).abs(), start)
        factors = torch.eye(self.dimension, dtype=torch.float64) + self.spread * normal(
            self.classes, self.dimension, self.dimension
        )
        centers = vectors if self.seed % 2 else shared.expand_as(vectors)
        return Bowls(factors @ factors.mT, centers, start)

    def step(self, problem: Problem) -> Tensor:
        """A step length (PROBLEMS,) that is worth taking on every one of the problems."""
        gap = problem.losses(problem.start) / problem.constants.smoothness.value
        return self.scale * gap.amax(-1).sqrt()


draws = st.builds(
    Draw,
    family=st.sampled_from(["quadratics", "ramps", "waves", "bowls"]),
    seed=st.integers(0, 2**31),
    classes=st.sampled_from([2, 2, 3, 5]),
    dimension=st.integers(1, 6),
    spread=st.sampled_from([0.05, 0.3, 1.0, 3.0]),
    steps=st.integers(1, 12),
    scale=st.sampled_from([0.01, 0.1, 0.5]),
)
many = settings(max_examples=150, deadline=None)


def assert_true(bound) -> None:
    assert not bound.violated.any(), (bound.name, bound.statement, bound.tightest)


@many
@given(draws)
def test_gd(draw):
    problem = draw.problem()
    smooth = problem.constants.smoothness.value
    for cap in (math.inf, 0.3 / float(smooth.max())):
        path = descend(problem, "gd", draw.steps, gd_steps(smooth, cap if cap < math.inf else 1e6))
        assert_true(gd_bound(path, problem.constants, cap=cap))
    assert_true(gd_bound(path, problem.constants, statement="sharp"))


@many
@given(draws)
def test_gd_with_a_free_step(draw):
    problem = draw.problem()
    lr = (draw.scale / problem.constants.smoothness.value.amax(-1)).unsqueeze(-1).expand(-1, draw.steps)
    path = descend(problem, "gd", draw.steps, lr)
    for statement in ("corrected", "printed", "sharp"):
        assert_true(gd_alternate_bound(path, problem.constants, statement=statement))


@many
@given(draws)
def test_pcngd_with_a_constant_step(draw):
    problem = draw.problem()
    path = descend(problem, "pcngd", draw.steps, draw.step(problem).unsqueeze(-1).expand(-1, draw.steps))
    statements = ("corrected", "sharp", "printed") if draw.classes == 2 else ("corrected", "sharp")
    for bound in (pcngd_bound, r_pcngd_bound):
        for statement in statements:
            assert_true(bound(path, problem.constants, statement=statement))
    assert_true(pcngd_multiclass_bound(path, problem.constants))
    assert_true(dominated_constant_bound(path, problem.constants))
    if draw.classes == 2:
        assert_true(dominated_constant_bound(path, problem.constants, statement="printed"))


@many
@given(draws)
def test_pcngd_with_the_second_step(draw):
    problem = draw.problem()
    path = descend(problem, "pcngd", draw.steps, second_steps(float(draw.step(problem).mean()), draw.steps))
    statements = ("corrected", "sharp", "printed") if draw.classes == 2 else ("corrected", "sharp")
    for statement in statements:
        assert_true(pcngd_second_bound(path, problem.constants, statement=statement))


@many
@given(draws, st.floats(0.1, 8))
def test_pcngd_on_dominated_losses_with_a_decreasing_step(draw, factor):
    problem = draw.problem()
    gradients = problem.gradients(problem.start)
    start = Trajectory(
        problem.losses(problem.start).unsqueeze(-2).expand(-1, 2, -1),
        (gradients @ gradients.mT).unsqueeze(-3),
        torch.ones(PROBLEMS, 1),
    )
    m = dominated_rate(start, problem.constants).amin((-1, -2)).clamp(min=1e-3) / factor
    t = torch.arange(draw.steps)
    path = descend(problem, "pcngd", draw.steps, (2 * t + 1) / (m.unsqueeze(-1) * (t + 1) ** 2))
    assert_true(dominated_bound(path, problem.constants))
    assert not dominated_bound(path, problem.constants, statement="printed").met.any()


@many
@given(draws, st.floats(0.02, 1.5))
def test_pcngd_under_the_pl_condition(draw, omega):
    problem = replace(draw, family="bowls", seed=2 * draw.seed).problem()
    lr = pl_steps(4 * draw.steps, problem.losses(problem.start), problem.constants, problem.pl, omega)
    path = descend(problem, "pcngd", 4 * draw.steps, lr)
    assert_true(pl_bound(path, problem.constants, problem.pl, omega))


@dataclass(frozen=True)
class Samples:
    """Classes of two examples each, waves or ramps, so that every sequence of one-example batches can be listed."""

    seed: int
    classes: int
    dimension: int
    spread: float
    kind: str

    def parts(self) -> tuple[Tensor, Tensor]:
        """Directions (problems, classes, 2, dimension) and offsets (problems, classes, 2) of the examples."""
        random = torch.Generator().manual_seed(self.seed)
        shape = (PROBLEMS, self.classes, 2, self.dimension)
        shared = torch.randn(PROBLEMS, 1, 1, self.dimension, generator=random, dtype=torch.float64)
        directions = shared + self.spread * torch.randn(*shape, generator=random, dtype=torch.float64)
        return directions, 0.5 + torch.rand(*shape[:-1], generator=random, dtype=torch.float64)

    def evaluate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Losses (..., classes, 2) and gradients (..., classes, 2, dimension) of the examples at x."""
        directions, offsets = self.parts()
        height = (directions * x[..., None, None, :]).sum(-1) + offsets
        if self.kind == "waves":
            return 1 - height.cos(), height.sin().unsqueeze(-1) * directions
        loss = torch.where(height.abs() <= 1, height.square() / 2, height.abs() - 0.5)
        return loss, height.clamp(-1, 1).unsqueeze(-1) * directions

    def all_runs(self, steps: int, lr: float) -> tuple[Trajectory, Tensor, Constant]:
        """Every run of PCNSGD with batches of one example per class: they are equally likely."""
        choices = torch.tensor(list(product(product(range(2), repeat=self.classes), repeat=steps)))
        x = torch.zeros(len(choices), PROBLEMS, self.dimension, dtype=torch.float64)
        losses, grams, batch_grams, variances = [self.evaluate(x)[0].mean(-1)], [], [], []
        for t in range(steps):
            gradients = self.evaluate(x)[1]
            full = gradients.mean(-2)
            picked = choices[:, t].reshape(-1, 1, self.classes, 1, 1).expand(*gradients.shape[:3], 1, self.dimension)
            batch = gradients.gather(-2, picked).squeeze(-2)
            variances.append((gradients - full.unsqueeze(-2)).square().sum(-1).mean(-1).amax(0))
            grams.append(full @ full.mT)
            batch_grams.append(batch @ batch.mT)
            x = x - lr * torch.nn.functional.normalize(batch, dim=-1).sum(-2)
            losses.append(self.evaluate(x)[0].mean(-1))
        lrs = torch.full((len(choices), PROBLEMS, steps), lr)
        sigma = Constant(torch.stack(variances).amax(0).sqrt())
        return Trajectory(torch.stack(losses, -2), torch.stack(grams, -3), lrs), torch.stack(batch_grams, -3), sigma

    def constants(self) -> Constants:
        return Constants.of(self.parts()[0].square().sum(-1).mean(-1))


samples = st.builds(
    Samples,
    seed=st.integers(0, 2**31),
    classes=st.sampled_from([2, 2, 3]),
    dimension=st.integers(1, 5),
    spread=st.sampled_from([0.02, 0.1, 0.5, 2.0]),
    kind=st.sampled_from(["waves", "ramps"]),
)


@settings(max_examples=60, deadline=None)
@given(samples, st.sampled_from([0.001, 0.03, 0.2]), st.integers(1, 3))
def test_pcnsgd_over_all_its_runs(sample, lr, steps):
    runs, batch_gram, sigma = sample.all_runs(min(steps, 4 - sample.classes + 1), lr)
    for statement in ("corrected", "sharp", "minibatch"):
        assert_true(pcnsgd_bound(runs, sample.constants(), sigma, batch_gram=batch_gram, statement=statement))


@pytest.mark.parametrize(
    ("bound", "rule", "lr", "tight"),
    [
        (gd_bound, "gd", 0.05, 0.9),
        (gd_alternate_bound, "gd", 0.05, 0.9),
        (pcngd_bound, "pcngd", 0.05, 0.9),
        (r_pcngd_bound, "pcngd", 0.05, 0.9),
        (pcngd_second_bound, "pcngd", 0.05, 0.9),
    ],
)
def test_the_draws_meet_the_assumptions_and_come_close_to_the_bounds(bound, rule, lr, tight):
    """So that the tests above can fail: a bound smaller by a tenth would be broken."""
    found = []
    for family in ("quadratics", "ramps", "waves", "bowls"):
        problem = Draw(family, 1, 2, 2, 0.3, 6, 0.1).problem()
        found.append(bound(descend(problem, rule, 6, lr), problem.constants, statement="sharp"))
    assert sum(float(result.met.double().mean()) for result in found) / len(found) > 0.5
    assert max(result.tightest for result in found) > tight

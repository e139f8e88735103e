"""Run GD, PCNGD or PCNSGD on a small problem and keep every step, as the theorems want it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from classgrad._errors import InputError
from classgrad.theory._conditions import RuleName, pcn_margin, rule_weights
from classgrad.theory._gd import gd_caps
from classgrad.theory._noise import batch_variance
from classgrad.theory._problems import Examples, Problem
from classgrad.theory._records import Constant, Trajectory

StepSize = Callable[[int, Tensor], Tensor | float]
"""η_t from t and the Gram matrices of the class gradients at x_t."""


def descend(problem: Problem, rule: RuleName, steps: int, lr: float | Tensor | StepSize) -> Trajectory:
    """Make ``steps`` full-batch steps from the problem's start; ``lr`` is η, all η_t (..., steps), or a rule for η_t.

    >>> from classgrad.theory import conflict, descend
    >>> path = descend(conflict(angle=120, imbalance=7), "gd", steps=3, lr=0.1)
    >>> (path.losses[1] - path.losses[0]).sign().tolist()  # the minority gets worse at once
    [-1.0, 1.0]
    """
    if steps < 1:
        raise InputError(f"Parameter `steps` should be at least 1. Found {steps}.")
    x = problem.start
    losses, grams, sizes = [problem.losses(x)], [], []
    for t in range(steps):
        gradients = problem.gradients(x)
        gram = gradients @ gradients.mT
        size = _step_size(lr, t, gram)
        x = x - size.unsqueeze(-1) * (rule_weights(gram, rule).unsqueeze(-1) * gradients).sum(-2)
        losses.append(problem.losses(x))
        grams.append(gram)
        sizes.append(size)
    return Trajectory(torch.stack(losses, -2), torch.stack(grams, -3), torch.stack(sizes, -1))


def gd_steps(smoothness: Tensor, cap: float) -> StepSize:
    """Th. 1: η_t = min(min_l (1 + C_t cos α)/(2 (1 + C_t²) L_2), cap), cap = c/√T; cap where the condition fails."""

    def size(_: int, gram: Tensor) -> Tensor:
        smallest = gd_caps(gram, smoothness).amin(-1)
        return torch.where(smallest > 0, smallest, cap).clamp(max=cap)

    return size


def second_steps(c: float, steps: int) -> StepSize:
    """Second version of Th. 2: η_t = c/(ω_t √T) with the smallest ω_t of any class; c/√T where it is not positive."""

    def size(_: int, gram: Tensor) -> Tensor:
        margin = pcn_margin(gram).amin(-1)
        return c / math.sqrt(steps) * torch.where(margin > 0, margin, 1.0).reciprocal()

    return size


def dominated_steps(m: float) -> StepSize:
    """Th. 3: η_t = (2t+1)/(m (t+1)²)."""
    return lambda t, _: (2 * t + 1) / (m * (t + 1) ** 2)


@dataclass(frozen=True, eq=False)
class StochasticRuns:
    """Independent runs of PCNSGD on one problem."""

    paths: Trajectory
    """Full-batch losses and Gram matrices along the runs, shape (runs, ...)."""
    batch_gram: Tensor
    """Gram matrices of the mini-batch class gradients that made the steps."""
    sigma: Constant
    """The largest σ_l over all points visited, from the exact covariance there."""


def descend_stochastic(
    problem: Examples, per_class: Tensor, steps: int, lr: float, runs: int, generator: torch.Generator
) -> StochasticRuns:
    """Make ``steps`` steps of PCNSGD (Alg. 2), ``per_class`` examples of every class drawn anew without replacement."""
    counts = problem.counts
    if per_class.shape != counts.shape or bool((per_class < 1).any()) or bool((per_class > counts).any()):
        raise InputError(
            f"Parameter `per_class` should be from 1 to the examples {counts.tolist()}. Found {per_class.tolist()}."
        )
    x = problem.start.expand(runs, -1)
    losses, grams, batch_grams, variances = [problem.losses(x)], [], [], []
    for _ in range(steps):
        full = problem.gradients(x)
        batch = _batch_gradients(problem, x, per_class, generator)
        grams.append(full @ full.mT)
        batch_grams.append(batch @ batch.mT)
        variances.append(_variances(problem, x, full, per_class))
        x = x - lr * (rule_weights(batch_grams[-1], "pcngd").unsqueeze(-1) * batch).sum(-2)
        losses.append(problem.losses(x))
    sigma = torch.stack(variances).amax((0, 1)).clamp(min=0).sqrt()
    paths = Trajectory(torch.stack(losses, -2), torch.stack(grams, -3), torch.full((runs, steps), lr))
    return StochasticRuns(paths, torch.stack(batch_grams, -3), Constant(sigma, how="covariance at the points visited"))


def _step_size(lr: float | Tensor | StepSize, t: int, gram: Tensor) -> Tensor:
    size = lr[..., t] if isinstance(lr, Tensor) else lr(t, gram) if callable(lr) else lr
    return torch.as_tensor(size, dtype=torch.float64).expand(gram.shape[:-2])


def _batch_gradients(problem: Examples, x: Tensor, per_class: Tensor, generator: torch.Generator) -> Tensor:
    """Estimates of the g_l from batches drawn for each row of x, shape (runs, classes, D)."""
    n = len(problem.labels)
    slopes = problem.example_slopes(x)
    estimates = []
    for label, size in enumerate(per_class.tolist()):
        members = (problem.labels == label).nonzero().squeeze(-1)
        ranks = torch.rand(len(x), len(members), generator=generator).argsort(-1)
        chosen = members[ranks[:, :size]]
        scale = len(members) / (n * size)
        estimates.append(scale * (slopes.gather(1, chosen).unsqueeze(-1) * problem.inputs[chosen]).sum(1))
    return torch.stack(estimates, 1)


def _variances(problem: Examples, x: Tensor, full: Tensor, per_class: Tensor) -> Tensor:
    """E ‖g̃_l - g_l‖² of a batch drawn at each row of x, shape (runs, classes)."""
    n, counts = len(problem.labels), problem.counts
    squares = problem.example_slopes(x).square() * problem.inputs.square().sum(-1)
    sums = torch.stack([squares[:, problem.labels == label].sum(-1) for label in range(len(counts))], -1)
    means = full * (n / counts).unsqueeze(-1)
    spread = (sums - counts * means.square().sum(-1)) / (counts - 1).clamp(min=1)
    return (counts / n).square() * batch_variance(spread, per_class, counts)

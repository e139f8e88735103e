"""PCNGD on gradient-dominated class losses: Th. 3 with decreasing and constant steps, and a version that is not void.

The paper asks for ½‖∇f^(l)(x)‖ ≥ μ (f^(l)(x) - f^(l)_*) at *every* x. No smooth function but a constant meets that
(docs/theory.md), so the corrected statements ask for it at the points the run visits, which is all the proof uses.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from classgrad._errors import InputError
from classgrad.dynamics import class_norms
from classgrad.theory._conditions import pcn_margin
from classgrad.theory._gd import initial_gap
from classgrad.theory._records import ROUNDING, Bound, Constant, Constants, Statement, Trajectory, checked
from classgrad.theory._running import horizons, running_all, running_max, running_min


def dominance(path: Trajectory, constants: Constants) -> Tensor:
    """μ^(l) of ½‖g_l‖ ≥ μ^(l) (f^(l) - f^(l)_*): the largest that holds at x_0 .. x_{T̃-1}, shape (..., T, classes)."""
    gap = (path.losses[..., :-1, :] - constants.minima.along_steps).clamp(min=0)
    return running_min(class_norms(path.gram) / (2 * gap))


def dominated_rate(path: Trajectory, constants: Constants) -> Tensor:
    """C_μ^(l) = 2 μ^(l) min_t ω_t over the points visited before T̃, shape (..., T, classes)."""
    return 2 * dominance(path, constants) * running_min(pcn_margin(path.gram))


def dominated_bound(path: Trajectory, constants: Constants, *, statement: Statement = "corrected") -> Bound:
    """Bound f^(l)(x_T̃) - f^(l)_* of PCNGD with η_t = (2t+1)/(m (t+1)²) (Th. 3 formal, decreasing step).

    2 L² L_2/(m² T̃) for every class at once, for any m ≤ C_μ^(l) of all classes, taken over the points visited; with
    two classes that is 8 L_2/(m² T̃). ``printed`` is 8 L_2/(C_μ^(l)² T̃) with a μ that holds everywhere: its
    assumptions are never met.
    """
    checked(statement, "corrected", "printed")
    smooth, horizon = constants.smoothness.along_steps, horizons(path.steps)
    rate = dominated_rate(path, constants)
    t = horizon - 1
    implied = (2 * t + 1) / (path.lr.unsqueeze(-1) * (t + 1).square())
    m = running_max(implied)
    follows = m <= running_min(implied) * (1 + ROUNDING)
    printed = statement == "printed"
    dominated = running_all(pcn_margin(path.gram) > 0) & (m <= rate * (1 + ROUNDING))
    divisor = rate.square() if printed else m.square()
    return Bound(
        name="dominated",
        statement=statement,
        left=path.losses[..., 1:, :] - constants.minima.along_steps,
        right=(8.0 if printed else 2.0 * path.classes**2) * smooth / (divisor * horizon),
        met=torch.zeros_like(rate, dtype=torch.bool) if printed else dominated & follows,
        constants={**constants.named(), "mu": dominance(path, constants), "C_mu": rate, "m": m},
        estimated=constants.estimated,
    )


def dominated_constant_bound(path: Trajectory, constants: Constants, *, statement: Statement = "corrected") -> Bound:
    """Bound f^(l)(x_T̃) - f^(l)_* of PCNGD with a constant step η = c/C_μ, c < 1 (Th. 3 formal, second half).

    (1-c)^T̃ D_0 + L²/2 · L_2 c/C_μ², where C_μ is that of class l over the points visited. ``printed`` (two classes)
    has the exponent T̃ - 1, one too few: true, but not tight. Without "at every x" it is valid too.
    """
    checked(statement, "corrected", "printed")
    if statement == "printed" and path.classes != 2:
        raise InputError(f"Parameter `statement` should be 'corrected' with {path.classes} classes: printed is for 2.")
    smooth, initial, horizon = constants.smoothness.along_steps, initial_gap(path, constants), horizons(path.steps)
    rate, lr = dominated_rate(path, constants), path.lr.unsqueeze(-1)
    c = running_max(lr) * rate
    constant_step = running_max(lr) <= running_min(lr) * (1 + ROUNDING)
    exponent = horizon - 1 if statement == "printed" else horizon
    return Bound(
        name="dominated-constant",
        statement=statement,
        left=path.losses[..., 1:, :] - constants.minima.along_steps,
        right=(1 - c) ** exponent * initial + path.classes**2 / 2 * smooth * c / rate.square(),
        met=running_all(pcn_margin(path.gram) > 0) & constant_step & (c < 1),
        constants={**constants.named(), "D_0": initial, "mu": dominance(path, constants), "C_mu": rate, "c": c},
        estimated=constants.estimated,
    )


def pl_bound(path: Trajectory, constants: Constants, pl: Constant, omega: float) -> Bound:
    """Bound f^(l)(x_T̃) - f^(l)_* of PCNGD under the Polyak-Łojasiewicz condition ½‖∇f‖² ≥ μ (f - f_*), at rate 1/T̃².

    The condition that over-parametrized models do meet. With the steps of :func:`pl_steps` for the same ``pl`` (one μ
    per class) and ``omega`` (a lower bound of ω_t), every class has f^(l)(x_T̃) - f^(l)_* ≤ D (s/(T̃+s))², where
    D = max_l D_0^(l) and s = 8b/a², b = L²/2 · L_2, a = min(ω √(2μ), √(2b)). Not in the paper; proof in
    docs/theory.md.
    """
    largest = initial_gap(path, constants).amax(-1, keepdim=True)
    a, b = _pl_scales(constants.smoothness.along_steps, pl.along_steps, omega, path.classes)
    s = 8 * b / a.square()
    t = horizons(path.steps) - 1
    planned = a * largest.sqrt() / (2 * b) * s / (t + s)
    follows = (path.lr.unsqueeze(-1) - planned).abs() <= planned * ROUNDING
    dominated = pcn_margin(path.gram) >= omega * (1 - ROUNDING)
    return Bound(
        name="pl",
        statement="corrected",
        left=path.losses[..., 1:, :] - constants.minima.along_steps,
        right=(largest * (s / (horizons(path.steps) + s)).square()).expand_as(path.losses[..., 1:, :]),
        met=running_all(dominated & follows),
        constants={**constants.named(), "D": largest, "mu": pl.value, "omega": torch.tensor(omega), "a": a, "s": s},
        estimated=constants.estimated + (() if pl.exact else ("mu",)),
    )


def pl_steps(steps: int, start: Tensor, constants: Constants, pl: Constant, omega: float) -> Tensor:
    """Give the steps η_t = a√D/(2b) · s/(t+s) of :func:`pl_bound` from the class losses at the start, (..., steps)."""
    gap = (start - constants.minima.value).amax(-1, keepdim=True)
    a, b = _pl_scales(constants.smoothness.value, pl.value, omega, start.shape[-1])
    s = 8 * b / a.square()
    return a * gap.sqrt() / (2 * b) * s / (torch.arange(steps, dtype=torch.float64) + s)


def _pl_scales(smoothness: Tensor, pl: Tensor, omega: float, classes: int) -> tuple[Tensor, Tensor]:
    if not 0 < omega <= classes:
        raise InputError(f"Parameter `omega` should be above 0 and at most {classes}, the classes. Found {omega!r}.")
    b = classes**2 / 2 * _over_classes(smoothness, largest=True)
    a = omega * (2 * _over_classes(pl, largest=False)).sqrt()
    return torch.minimum(a, (2 * b).sqrt()), b


def _over_classes(values: Tensor, *, largest: bool) -> Tensor:
    values = values if values.ndim else values.unsqueeze(0)
    return values.amax(-1, keepdim=True) if largest else values.amin(-1, keepdim=True)


def dominance_ceiling(smoothness: float, mu: float) -> float:
    """Bound f - f_* where f is L_2-smooth and ½‖∇f‖ ≥ μ (f - f_*): L_2/(2μ²).

    From 2μδ ≤ ‖∇f‖ ≤ √(2 L_2 δ). Since ascent steps of length ‖∇f‖/L_2 raise δ without bound, no function but a
    constant meets both everywhere.

    >>> dominance_ceiling(1.0, 0.5)
    2.0
    """
    return smoothness / (2 * math.pow(mu, 2))

"""Bounds for gradient descent: Th. 1 in its formal and multi-class versions, and the one with a free step size."""

from __future__ import annotations

import torch
from torch import Tensor

from classgrad.dynamics import class_norms, condition, imbalance_ratio
from classgrad.theory._conditions import direction_length
from classgrad.theory._records import ROUNDING, Bound, Constants, Statement, Trajectory, checked
from classgrad.theory._running import horizons, running_all, running_max, running_min, running_sum


def gd_bound(
    path: Trajectory, constants: Constants, *, cap: float | None = None, statement: Statement = "corrected"
) -> Bound:
    """Bound min_{s<T̃} ‖g_l(x_s)‖² of gradient descent (Th. 1 formal; any number of classes: Th. "GDdecreasingMulti").

    The step sizes must follow η_t = min(min_l (1 + C_t^(l) cos α^(l)) / (2 (1 + C_t^(l)²) L_2), c/√T̃). Any
    constant step below the first term does. ``cap`` is the c/√T̃ of the run, by default the largest step it made, which
    is right unless the first term was the smaller one all along (then ``math.inf`` is the best). The bound is
    2 D_0/(ω_min T̃) · (max_k 2 (1 + C_max^(k)) L_2/ω_min^(k) + √T̃/c), ω_t = 1 + C_t cos α, C_max = max C_t².

    ``printed`` has half of it (a factor 2 is lost between two lines of the proof) and takes the step of one class at
    a time. ``sharp`` is (D_0 + L_2/2 Σ η_t² ‖∇f‖²) / Σ η_t ω_t, for any step sizes. See docs/theory.md.
    """
    checked(statement)
    return _sharp(path, constants) if statement == "sharp" else _theorem(path, constants, cap, statement)


def gd_alternate_bound(path: Trajectory, constants: Constants, *, statement: Statement = "corrected") -> Bound:
    """Bound min_{s<T̃} ‖g_l(x_s)‖² by D_0/(ω T̃), steps independent of T̃ (Th. "GD_alternate_step_size").

    ω = min_t η (1 + C_t cos α - L_2 η (1 + C_t²)) must be positive. The statement holds as printed. ``sharp`` is
    D_0 / Σ (η_t ω_t - L_2/2 η_t² ‖∇f‖²/‖g_l‖²), without ‖x + y‖² ≤ 2‖x‖² + 2‖y‖².
    """
    checked(statement)
    smooth, initial = constants.smoothness.along_steps, initial_gap(path, constants)
    margin, lr = condition(path.gram), path.lr.unsqueeze(-1)
    if statement == "sharp":
        length = direction_length(path.gram, torch.ones_like(margin)) / class_norms(path.gram).square()
        gain = lr * margin - smooth / 2 * lr.square() * length
        right = initial / running_sum(gain)
    else:
        gain = lr * (margin - smooth * lr * (1 + imbalance_ratio(path.gram).square()))
        right = initial / (running_min(gain) * horizons(path.steps))
    return Bound(
        name="gd-alternate",
        statement=statement,
        left=running_min(class_norms(path.gram).square()),
        right=right,
        met=running_all(gain > 0),
        constants={**constants.named(), "D_0": initial, "omega": running_min(gain)},
        estimated=constants.estimated,
    )


def gd_caps(gram: Tensor, smoothness: Tensor | float) -> Tensor:
    """Give the first term of Th. 1's step size, (1 + C_t cos α) / (2 (1 + C_t²) L_2), shape (..., classes)."""
    return condition(gram) / (2 * (1 + imbalance_ratio(gram).square()) * smoothness)


def initial_gap(path: Trajectory, constants: Constants) -> Tensor:
    """D_0^(l) = f^(l)(x_0) - f^(l)_*, shape (..., 1, classes)."""
    return (path.losses[..., :1, :] - constants.minima.along_steps).clamp(min=0)


def _theorem(path: Trajectory, constants: Constants, cap: float | None, statement: Statement) -> Bound:
    smooth, initial = constants.smoothness.along_steps, initial_gap(path, constants)
    margin, lr, horizon = condition(path.gram), path.lr.unsqueeze(-1), horizons(path.steps)
    omega_min, c_max = running_min(margin), running_max(imbalance_ratio(path.gram).square())
    own = 2 * (1 + c_max) * smooth / omega_min
    stiffness = own if statement == "printed" else own.amax(-1, keepdim=True)
    lost = 1.0 if statement == "printed" else 2.0
    limit = running_max(lr) if cap is None else torch.full_like(lr, cap)
    small_enough = running_all((margin > 0) & (lr <= gd_caps(path.gram, smooth) * (1 + ROUNDING)))
    large_enough = running_max(1 / lr) <= torch.maximum(stiffness, 1 / limit) * (1 + ROUNDING)
    return Bound(
        name="gd",
        statement=statement,
        left=running_min(class_norms(path.gram).square()),
        right=lost * initial / (omega_min * horizon) * (stiffness + 1 / limit),
        met=small_enough & large_enough,
        constants={
            **constants.named(),
            "D_0": initial,
            "omega_min": omega_min,
            "C_max": c_max,
            "c": limit * horizon.sqrt(),
        },
        estimated=constants.estimated,
    )


def _sharp(path: Trajectory, constants: Constants) -> Bound:
    smooth, initial = constants.smoothness.along_steps, initial_gap(path, constants)
    margin, lr = condition(path.gram), path.lr.unsqueeze(-1)
    curvature = smooth / 2 * running_sum(lr.square() * direction_length(path.gram, torch.ones_like(margin)))
    return Bound(
        name="gd",
        statement="sharp",
        left=running_min(class_norms(path.gram).square()),
        right=(initial + curvature) / running_sum(lr * margin),
        met=running_all(margin > 0),
        constants={**constants.named(), "D_0": initial, "omega_min": running_min(margin)},
        estimated=constants.estimated,
    )

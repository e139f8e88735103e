"""The bound for PCNSGD, per-class normalized steps with the gradients of mini-batches (Th. 4)."""

from __future__ import annotations

import torch
from torch import Tensor

from classgrad._errors import InputError
from classgrad.dynamics import class_norms
from classgrad.theory._conditions import pcn_margin
from classgrad.theory._records import ROUNDING, Bound, Constant, Constants, Statement, Trajectory, checked
from classgrad.theory._running import horizons, running_max, running_min, running_sum


def pcnsgd_bound(
    runs: Trajectory,
    constants: Constants,
    sigma: Constant,
    *,
    batch_gram: Tensor | None = None,
    chances: Tensor | None = None,
    statement: Statement = "corrected",
) -> Bound:
    """Bound min_{s<T̃} E ‖g_l(x_s)‖ of PCNSGD with a constant step η = c/√T̃ (Th. 4 formal).

    The first dimension of ``runs`` is independent runs of one problem (any further ones are independent problems); its
    ``gram`` is that of the *full-batch* class gradients. Expectations are means over the runs, weighted by ``chances``
    where given (exact when the runs are all possible ones). ``sigma`` holds σ_l with E ‖g̃_l - g_l‖² ≤ σ_l² at every
    point visited. The right side is

    - ``corrected``: (D_0/c + L²/2 · L_2 c)/(ω √T̃) + 2/ω · max_t Σ_i σ_i ‖g_l‖/‖g_i‖, with ω the smallest
      :func:`pcn_margin` over all runs: the noise of every class enters, relative to its signal;
    - ``sharp``: the mean over runs and steps in place of that maximum;
    - ``minibatch``: (D_0/c + L²/2 · L_2 c)/(ω̃ √T̃) + σ_l (1 + L/ω̃), with ω̃ the smallest margin of the *mini-batch*
      gradients ever drawn (``batch_gram``, shaped like ``runs.gram``): what the paper's proof proves;
    - ``printed`` (two classes): that formula with the full-batch ω. The proof takes one angle for the other, and the
      noise of the other class is lost.
    """
    checked(statement, "corrected", "sharp", "minibatch", "printed")
    if runs.gram.ndim < 4:
        raise InputError("Parameter `runs` should have a first dimension, independent runs. Found a single run.")
    chance = _normalized(chances, runs)
    margin, noise = _margin_and_noise(runs, sigma.along_steps, chance, batch_gram, statement)
    horizon = horizons(runs.steps)
    initial = (_mean(runs.losses, chance)[..., :1, :] - constants.minima.along_steps).clamp(min=0)
    largest, smallest = (running(runs.lr.unsqueeze(-1)) for running in (running_max, running_min))
    c = largest.amax(0) * horizon.sqrt()
    descent = (initial / c + runs.classes**2 / 2 * constants.smoothness.along_steps * c) / (margin * horizon.sqrt())
    constant_step = largest.amax(0) <= smallest.amin(0) * (1 + ROUNDING)
    return Bound(
        name="pcnsgd",
        statement=statement,
        left=running_min(_mean(class_norms(runs.gram), chance)),
        right=descent + noise / margin,
        met=(margin > 0) & constant_step,
        constants={**constants.named(), "D_0": initial, "sigma": sigma.value, "omega_min": margin, "c": c},
        estimated=constants.estimated + (() if sigma.exact else ("sigma",)),
    )


def _margin_and_noise(
    runs: Trajectory, sigma: Tensor, chance: Tensor, batch_gram: Tensor | None, statement: Statement
) -> tuple[Tensor, Tensor]:
    """ω for every horizon, and ω times the term that stays when T̃ grows; shapes (..., T, classes)."""
    if statement in ("minibatch", "printed"):
        margin = running_min(_angles(runs, batch_gram, statement).amin(0))
        return margin, sigma * (margin + runs.classes)
    norms = class_norms(runs.gram)
    relative = 2 * norms * (sigma / norms).sum(-1, keepdim=True)
    margin = running_min(pcn_margin(runs.gram).amin(0))
    if statement == "sharp":
        return margin, running_sum(_mean(relative, chance)) / horizons(runs.steps)
    return margin, running_max(relative.amax(0))


def _angles(runs: Trajectory, batch_gram: Tensor | None, statement: Statement) -> Tensor:
    if statement == "printed" and runs.classes != 2:
        raise InputError(f"Parameter `statement` should not be 'printed' with {runs.classes} classes: that is for 2.")
    if statement == "printed":
        return pcn_margin(runs.gram)
    if batch_gram is None or batch_gram.shape != runs.gram.shape:
        found = None if batch_gram is None else tuple(batch_gram.shape)
        raise InputError(
            f"Parameter `batch_gram` should have shape {tuple(runs.gram.shape)}, as `runs`. Found {found}."
        )
    return pcn_margin(batch_gram)


def _normalized(chances: Tensor | None, runs: Trajectory) -> Tensor:
    count = runs.gram.shape[0]
    if chances is None:
        chances = torch.ones(count)
    if chances.shape != (count,) or not bool((chances >= 0).all()) or not bool(chances.sum() > 0):
        raise InputError(f"Parameter `chances` should be {count} numbers of at least 0, one per run, not all 0.")
    return (chances.double() / chances.sum()).reshape(count, *[1] * (runs.losses.ndim - 1))


def _mean(values: Tensor, chance: Tensor) -> Tensor:
    return (values * chance).sum(0)

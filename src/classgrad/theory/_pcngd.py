"""Bounds for per-class normalized gradient descent: Th. 2 in its three versions, and R-PCNGD."""

from __future__ import annotations

from torch import Tensor

from classgrad._errors import InputError
from classgrad.dynamics import class_norms, normalizing_weights
from classgrad.theory._conditions import direction_length, pcn_margin
from classgrad.theory._gd import initial_gap
from classgrad.theory._records import ROUNDING, Bound, Constants, Statement, Trajectory, checked
from classgrad.theory._running import horizons, running_all, running_max, running_min, running_sum


def pcngd_bound(path: Trajectory, constants: Constants, *, statement: Statement = "corrected") -> Bound:
    """Bound min_{s<T̃} ‖g_l(x_s)‖ of PCNGD with a constant step η = c/√T̃ (Th. 2 formal).

    (D_0/c + L²/2 · L_2 c) / (ω_min √T̃) with ω_t = 1 + C̃_t cos α (:func:`pcn_margin`), which must be positive; with
    L = 2 classes this is the printed statement, which holds. ``sharp`` is
    (D_0 + L_2/2 Σ η_t² ‖Σ g_i/‖g_i‖‖²) / Σ η_t ω_t, for any step sizes.
    """
    checked(statement)
    if statement == "sharp":
        return _sharp("pcngd", path, constants)
    if statement == "printed":
        _two_classes(path)
    smooth, initial, horizon = constants.smoothness.along_steps, initial_gap(path, constants), horizons(path.steps)
    margin = pcn_margin(path.gram)
    c, constant_step = _constant_step(path)
    omega_min = running_min(margin)
    return Bound(
        name="pcngd",
        statement=statement,
        left=running_min(class_norms(path.gram)),
        right=(initial / c + path.classes**2 / 2 * smooth * c) / (omega_min * horizon.sqrt()),
        met=running_all(margin > 0) & constant_step,
        constants={**constants.named(), "D_0": initial, "omega_min": omega_min, "c": c},
        estimated=constants.estimated,
    )


def pcngd_multiclass_bound(path: Trajectory, constants: Constants, *, statement: Statement = "corrected") -> Bound:
    """Bound min_{s<T̃} ‖g_l(x_s)‖ of PCNGD with any number of classes (App. "Multi-class analysis").

    ``corrected`` and ``sharp`` are :func:`pcngd_bound`. ``printed`` is (D_0/(c (L - 1)) + L_2 c) / (ω_min √T̃) with
    ω_t = 1 + cos α^(l) and the condition cos α^(l) ≠ -1: the condition does not suffice, the factor L - 1 does not
    follow, and for L = 2 it is not Th. 2.
    """
    checked(statement)
    if statement != "printed":
        return pcngd_bound(path, constants, statement=statement)
    smooth, initial, horizon = constants.smoothness.along_steps, initial_gap(path, constants), horizons(path.steps)
    margin = pcn_margin(path.gram, statement="printed")
    c, constant_step = _constant_step(path)
    omega_min = running_min(margin)
    return Bound(
        name="pcngd-multiclass",
        statement="printed",
        left=running_min(class_norms(path.gram)),
        right=(initial / (c * (path.classes - 1)) + smooth * c) / (omega_min * horizon.sqrt()),
        met=running_all(margin > 0) & constant_step,
        constants={**constants.named(), "D_0": initial, "omega_min": omega_min, "c": c},
        estimated=constants.estimated,
    )


def pcngd_second_bound(path: Trajectory, constants: Constants, *, statement: Statement = "corrected") -> Bound:
    """Bound min_{s<T̃} ‖g_l(x_s)‖ of PCNGD with η_t = c/(ω_t √T̃) (second formal version of Th. 2).

    (D_0/c + L²/2 · L_2 c/ω_min) / √T̃ with ω_min = min_t ω_t², ω_t = min_l (1 + C̃_t^(l) cos α^(l)). The printed
    statement (two classes) holds; its ω_min is the square of the other theorems'. ``sharp`` as in
    :func:`pcngd_bound`.
    """
    checked(statement)
    if statement == "sharp":
        return _sharp("pcngd-second", path, constants)
    if statement == "printed":
        _two_classes(path)
    smooth, initial, horizon = constants.smoothness.along_steps, initial_gap(path, constants), horizons(path.steps)
    margin = pcn_margin(path.gram).amin(-1, keepdim=True)
    scaled = path.lr.unsqueeze(-1) * margin
    c = running_max(scaled) * horizon.sqrt()
    square_min = running_min(margin.square())
    curvature = path.classes**2 / 2 * smooth
    follows = running_max(scaled) <= running_min(scaled) * (1 + ROUNDING)
    return Bound(
        name="pcngd-second",
        statement=statement,
        left=running_min(class_norms(path.gram)),
        right=(initial / c + curvature * c / square_min) / horizon.sqrt(),
        met=(running_all(margin > 0) & follows).expand_as(path.losses[..., 1:, :]),
        constants={**constants.named(), "D_0": initial, "omega_min": square_min, "c": c},
        estimated=constants.estimated,
    )


def r_pcngd_bound(path: Trajectory, constants: Constants, *, statement: Statement = "corrected") -> Bound:
    """Bound E ‖g_l(x_R)‖ where R is drawn with P_R(t) = ω_t/Σ ω_t from a run of PCNGD (Th. R-PCNGD), η = c/√T̃.

    (D_0/c + L²/2 · L_2 c) / (√T̃ ω̄) with the mean ω̄; the printed statement (two classes) holds, one line of its
    proof does not (Σ_t η_t⁻¹ [...] is not (Σ_t η_t)⁻¹ [...]). ``sharp`` draws with P_R(t) ∝ η_t ω_t, for any step
    sizes. With more classes ω_t is that of class l, so the law of R is one per class.
    """
    checked(statement)
    smooth, initial, horizon = constants.smoothness.along_steps, initial_gap(path, constants), horizons(path.steps)
    margin, norms, lr = pcn_margin(path.gram), class_norms(path.gram), path.lr.unsqueeze(-1)
    share = lr * margin if statement == "sharp" else margin
    left = running_sum(share * norms) / running_sum(share)
    if statement == "sharp":
        return _sharp("r-pcngd", path, constants, left=left)
    if statement == "printed":
        _two_classes(path)
    c, constant_step = _constant_step(path)
    mean = running_sum(margin) / horizon
    return Bound(
        name="r-pcngd",
        statement=statement,
        left=left,
        right=(initial / c + path.classes**2 / 2 * smooth * c) / (horizon.sqrt() * mean),
        met=running_all(margin > 0) & constant_step,
        constants={**constants.named(), "D_0": initial, "omega_mean": mean, "c": c},
        estimated=constants.estimated,
    )


def _sharp(name: str, path: Trajectory, constants: Constants, left: Tensor | None = None) -> Bound:
    smooth, initial = constants.smoothness.along_steps, initial_gap(path, constants)
    margin, lr = pcn_margin(path.gram), path.lr.unsqueeze(-1)
    length = direction_length(path.gram, normalizing_weights(path.gram))
    curvature = smooth / 2 * running_sum(lr.square() * length)
    return Bound(
        name=name,
        statement="sharp",
        left=running_min(class_norms(path.gram)) if left is None else left,
        right=(initial + curvature) / running_sum(lr * margin),
        met=running_all(margin > 0),
        constants={**constants.named(), "D_0": initial, "omega_min": running_min(margin)},
        estimated=constants.estimated,
    )


def _constant_step(path: Trajectory) -> tuple[Tensor, Tensor]:
    """Give c = η√T̃ for every horizon, and where the step was constant up to it; shapes (..., T, 1)."""
    lr = path.lr.unsqueeze(-1)
    return running_max(lr) * horizons(path.steps).sqrt(), running_max(lr) <= running_min(lr) * (1 + ROUNDING)


def _two_classes(path: Trajectory) -> None:
    if path.classes != 2:
        raise InputError(
            f"Parameter `statement` should be 'corrected' or 'sharp' with {path.classes} classes: the printed one is "
            "for 2 (for more see pcngd_multiclass_bound)."
        )

"""Small problems whose class losses, gradients and constants are known in closed form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import softplus

from classgrad.theory._constants import least_squares_constants, logistic_constants
from classgrad.theory._records import Constant, Constants


class Problem(Protocol):
    """Class losses f^(l) on R^D with known constants; leading dimensions of ``start`` are so many problems at once."""

    @property
    def start(self) -> Tensor:
        """x_0, shape (..., D)."""

    @property
    def constants(self) -> Constants:
        """L_2 and f_* of every class."""

    @property
    def pl(self) -> Constant | None:
        """The PL constants μ of ½‖∇f^(l)‖² ≥ μ (f^(l) - f^(l)_*) on the whole space, where there are any."""

    def losses(self, x: Tensor) -> Tensor:
        """f^(l)(x), shape (..., classes)."""

    def gradients(self, x: Tensor) -> Tensor:
        """g_l(x), shape (..., classes, D)."""


@dataclass(frozen=True, eq=False)
class Quadratics:
    """f^(l)(x) = k_l/2 ‖x - a_l‖²: isotropic, the functions of the tightness argument (App. "Tightness").

    ``curvature`` k has shape (..., classes), ``centers`` a (..., classes, D).
    """

    curvature: Tensor
    centers: Tensor
    start: Tensor

    @property
    def constants(self) -> Constants:
        """L_2 = k_l, f_* = 0, exactly."""
        return Constants.of(self.curvature)

    @property
    def pl(self) -> Constant:
        """k_l, exactly."""
        return Constant(self.curvature)

    def losses(self, x: Tensor) -> Tensor:
        """k_l/2 ‖x - a_l‖²."""
        return self.curvature / 2 * (x.unsqueeze(-2) - self.centers).square().sum(-1)

    def gradients(self, x: Tensor) -> Tensor:
        """k_l (x - a_l)."""
        return self.curvature.unsqueeze(-1) * (x.unsqueeze(-2) - self.centers)

    def gd_iterate(self, lr: float, step: int) -> Tensor:
        """x_t of gradient descent in closed form: x̄ + (1 - η Σ k)^t (x_0 - x̄), x̄ the weighted mean of the centers."""
        total = self.curvature.sum(-1, keepdim=True)
        mean = (self.curvature.unsqueeze(-1) * self.centers).sum(-2) / total
        return mean + (1 - lr * total) ** step * (self.start - mean)


@dataclass(frozen=True, eq=False)
class Ramps:
    """f^(l)(x) = h(⟨v_l, x⟩ + b_l) with Huber's h: u²/2 for u within ±1, then ±u - 1/2.

    Lipschitz *and* smooth on the whole space, as the paper assumes, with gradients of constant length on the slopes.
    ``directions`` v has shape (..., classes, D), ``offsets`` b (..., classes).
    """

    directions: Tensor
    offsets: Tensor
    start: Tensor

    @property
    def constants(self) -> Constants:
        """L_1 = ‖v_l‖, L_2 = ‖v_l‖², f_* = 0, exactly."""
        length = torch.linalg.vector_norm(self.directions, dim=-1)
        return Constants.of(length.square(), 0.0, length)

    @property
    def pl(self) -> None:
        """None: the slopes go on for ever."""

    def losses(self, x: Tensor) -> Tensor:
        """h(⟨v_l, x⟩ + b_l)."""
        height = self._height(x)
        return torch.where(height.abs() <= 1, height.square() / 2, height.abs() - 0.5)

    def gradients(self, x: Tensor) -> Tensor:
        """h'(⟨v_l, x⟩ + b_l) v_l."""
        return self._height(x).clamp(-1, 1).unsqueeze(-1) * self.directions

    def _height(self, x: Tensor) -> Tensor:
        return (self.directions * x.unsqueeze(-2)).sum(-1) + self.offsets


@dataclass(frozen=True, eq=False)
class Examples:
    """A finite sum: f^(l) = 1/n Σ_{i in class l} f_i, with a loss for every example.

    ``inputs`` has shape (n, D), ``targets`` (n,), ``labels`` (n,) counts classes from 0.
    """

    kind: str
    inputs: Tensor
    targets: Tensor
    labels: Tensor
    start: Tensor

    @property
    def counts(self) -> Tensor:
        """Examples per class n_l."""
        return torch.bincount(self.labels)

    @property
    def constants(self) -> Constants:
        """Those of least squares or of logistic regression, exactly."""
        known = {"least-squares": least_squares_constants, "logistic": logistic_constants}
        return known[self.kind](self.inputs, self.labels)

    @property
    def pl(self) -> Constant | None:
        """λ_min(Z_l Z_lᵀ)/n for least squares that every class can interpolate, none for logistic regression."""
        if self.kind == "logistic":
            return None
        classes = [self.inputs[self.labels == label] for label in range(len(self.counts))]
        spectra = [torch.linalg.eigvalsh(rows @ rows.T) / len(self.labels) for rows in classes]
        rounding = torch.finfo(self.inputs.dtype).eps
        if any(bool(found[0] <= found[-1] * len(found) * rounding) for found in spectra):
            return None
        return Constant(torch.stack([found[0] for found in spectra]), how="smallest eigenvalue of Z_l Z_lᵀ/n")

    def losses(self, x: Tensor) -> Tensor:
        """f^(l)(x)."""
        return self.example_losses(x) @ self._membership / len(self.labels)

    def gradients(self, x: Tensor) -> Tensor:
        """g_l(x)."""
        slopes = self.example_slopes(x).unsqueeze(-2) * self._membership.T
        return slopes @ self.inputs / len(self.labels)

    def example_losses(self, x: Tensor) -> Tensor:
        """f_i(x) for every example, shape (..., n)."""
        score = x @ self.inputs.T
        if self.kind == "logistic":
            return softplus(-self.targets * score)
        return (score - self.targets).square() / 2

    def example_slopes(self, x: Tensor) -> Tensor:
        """∂f_i/∂score_i, shape (..., n): the gradient of example i is this times its input."""
        score = x @ self.inputs.T
        if self.kind == "logistic":
            return -self.targets * torch.sigmoid(-self.targets * score)
        return score - self.targets

    @property
    def _membership(self) -> Tensor:
        return torch.nn.functional.one_hot(self.labels).to(self.inputs.dtype)

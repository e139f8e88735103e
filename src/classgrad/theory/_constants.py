"""Constants that are known exactly: quadratics, least squares, logistic and softmax regression.

All are for f^(l) = 1/n Σ over the examples of class l, n the examples of *all* classes, as in the paper.
"""

from __future__ import annotations

import torch
from torch import Tensor

from classgrad._errors import InputError
from classgrad.theory._records import Constant, Constants


def quadratic_constants(hessians: Tensor, minima: Tensor | float = 0.0) -> Constants:
    """Constants of f^(l)(x) = ½ (x - a)ᵀ A_l (x - a) + f^(l)_*: L_2 is the largest eigenvalue (in size) of A_l.

    ``hessians`` has shape (..., classes, D, D).

    >>> quadratic_constants(torch.diag_embed(torch.tensor([[1.0, 3.0], [2.0, 0.5]]))).smoothness.value.tolist()
    [3.0, 2.0]
    """
    return Constants.of(torch.linalg.eigvalsh(hessians.double()).abs().amax(-1), minima)


def quadratic_pl(hessians: Tensor) -> Constant:
    """PL constants of convex quadratics: the smallest eigenvalue of A_l that is not zero, shape (..., classes)."""
    values = torch.linalg.eigvalsh(hessians.double())
    zero = values.amax(-1, keepdim=True) * hessians.shape[-1] * torch.finfo(torch.float64).eps
    return Constant(values.where(values > zero, torch.inf).amin(-1), how="smallest non-zero eigenvalue")


def least_squares_constants(inputs: Tensor, labels: Tensor) -> Constants:
    """Constants of f^(l) = 1/(2n) Σ (⟨z_i, x⟩ - y_i)²: L_2 = λ_max(Z_lᵀZ_l)/n, f_* = 0 (never above the least)."""
    return quadratic_constants(_second_moments(inputs, labels))


def logistic_constants(inputs: Tensor, labels: Tensor) -> Constants:
    """Constants of logistic regression, f_i = log(1 + exp(-y_i ⟨z_i, x⟩)).

    L_2 = λ_max(Z_lᵀZ_l)/(4n), the curvature at x = 0, where every example's is largest; L_1 = Σ ‖z_i‖/n; f_* = 0,
    the limit along any direction that puts the class on its side (with an intercept there always is one).
    """
    curvature = quadratic_constants(_second_moments(inputs, labels)).smoothness.value / 4
    return Constants.of(curvature, 0.0, _lengths(inputs, labels))


def softmax_constants(inputs: Tensor, labels: Tensor) -> Constants:
    """Constants of softmax regression with weights W (classes × features): f_i = -log softmax(W z_i)_{y_i}.

    L_2 = λ_max(Z_lᵀZ_l)/(2n), since diag(p) - ppᵀ has no eigenvalue above 1/2, which it reaches at p = (1/2, 1/2, 0,
    ...); L_1 = √2 Σ ‖z_i‖/n; f_* = 0. With two classes the curvature is that of logistic regression, times two,
    since there are two weight vectors for one.
    """
    curvature = quadratic_constants(_second_moments(inputs, labels)).smoothness.value / 2
    return Constants.of(curvature, 0.0, _lengths(inputs, labels) * 2**0.5)


def _second_moments(inputs: Tensor, labels: Tensor) -> Tensor:
    """Z_lᵀZ_l / n of every class, shape (classes, D, D)."""
    return torch.stack([rows.T @ rows / len(labels) for rows in _by_class(inputs, labels)])


def _lengths(inputs: Tensor, labels: Tensor) -> Tensor:
    return torch.stack(
        [torch.linalg.vector_norm(rows, dim=-1).sum() / len(labels) for rows in _by_class(inputs, labels)]
    )


def _by_class(inputs: Tensor, labels: Tensor) -> list[Tensor]:
    if inputs.ndim != 2 or labels.shape != inputs.shape[:1] or len(labels) == 0:
        raise InputError(
            "Parameters `inputs` and `labels` should have shapes (examples, features) and (examples,). "
            f"Found {tuple(inputs.shape)} and {tuple(labels.shape)}."
        )
    return [inputs.double()[labels == label] for label in range(int(labels.max()) + 1)]

"""The five toy problems, by name: each shows one statement of the paper where it can be computed by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from classgrad._errors import InputError
from classgrad.theory._problems import Examples, Problem, Quadratics


def tightness(margin: float = 0.25, ratio: float = 4.0) -> Quadratics:
    """Two isotropic quadratics for which 1 + C_t cos α of class 1 is ``margin`` at the start (App. "Tightness").

    Class 1 has a gradient of length 1, class 0 one of length ``ratio`` (C_t of class 1). With a margin of 0 or below
    every step, however small, raises the loss of class 1; above it the largest step that lowers it is known exactly.
    """
    if not 0 < ratio < math.inf:
        raise InputError(f"Parameter `ratio` should be above 0 and finite. Found {ratio}.")
    if not 1 - ratio <= margin <= 1 + ratio:
        raise InputError(f"Parameter `margin` should be within 1 ± ratio, here 1 ± {ratio}. Found {margin}.")
    cosine = min(1.0, max(-1.0, (margin - 1) / ratio))  # (4.9 - 1) / 3.9 is rounded to more than 1
    gradients = torch.stack([ratio * _unit(math.acos(cosine)), _unit(0.0)])
    return Quadratics(torch.ones(2, dtype=torch.float64), -gradients, torch.zeros(2, dtype=torch.float64))


def conflict(angle: float = 120.0, imbalance: float = 7.0) -> Quadratics:
    """Two classes, ``imbalance`` examples to 1, whose gradients begin at ``angle`` degrees, as long as they are large.

    f^(l) = ρ_l/2 ‖x - a_l‖² with unit a_l. GD raises the minority's loss from the first step on where
    cos(angle) < -1/imbalance, and ends at the mean of the a_l weighted by the class sizes; PCNGD goes along the
    bisector to the middle between them.
    """
    if not imbalance > 0:
        raise InputError(f"Parameter `imbalance` should be above 0. Found {imbalance}.")
    share = torch.tensor([imbalance, 1.0], dtype=torch.float64) / (imbalance + 1)
    centers = torch.stack([_unit(0.0), _unit(math.radians(angle))])
    return Quadratics(share, centers, torch.zeros(2, dtype=torch.float64))


def logistic(
    counts: Sequence[int] = (140, 20),
    separation: float = 4.0,
    dimension: int = 3,
    common: float = 3.0,
    seed: int = 0,
) -> Examples:
    """Logistic regression on two Gaussian classes, ``separation`` standard deviations apart.

    All inputs share one more coordinate of the value ``common``, the intercept. Where it is larger than half the
    separation the two class gradients conflict at the start, though the classes can be told apart: the minority's loss
    rises under GD, and falls later.
    """
    if len(counts) != 2:
        raise InputError(f"Parameter `counts` should be two numbers of examples. Found {list(counts)}.")
    labels, noise = _drawn(counts, dimension, seed)
    side = 1 - 2 * labels.double()
    noise[:, 0] += side * separation / 2
    inputs = torch.cat([noise, torch.full((len(labels), 1), common, dtype=torch.float64)], dim=1)
    return Examples("logistic", inputs, side, labels, torch.zeros(dimension + 1, dtype=torch.float64))


def least_squares(counts: Sequence[int] = (12, 4), dimension: int = 40, seed: int = 0) -> Examples:
    """Over-parametrized least squares: fewer examples than parameters, so one x has no loss at all.

    Every class meets the PL condition with λ_min(Z_l Z_lᵀ)/n, everywhere. The inputs of all classes share a large
    common part, so that the class gradients begin nearly parallel.
    """
    if sum(counts) > dimension:
        raise InputError(f"Parameter `dimension` should be at least the examples, {sum(counts)}. Found {dimension}.")
    labels, noise = _drawn(counts, dimension, seed)
    inputs = noise / math.sqrt(dimension)
    inputs[:, 0] += 1.0
    return Examples("least-squares", inputs, inputs[:, 0].clone(), labels, torch.zeros(dimension, dtype=torch.float64))


def many_classes(counts: Sequence[int] = (90, 90, 90, 10), angle: float = 150.0) -> Quadratics:
    """Return the worst case of many classes: the last against all the others, which pull together at ``angle`` degrees.

    Then C_t of the last class is Σ_{i≠l} n_i/n_l under GD and L - 1 under PCNGD, so that from three classes on even
    PCNGD raises its loss where cos(angle) < -1/(L - 1), though no angle is 180°.
    """
    if len(counts) < 2 or min(counts) < 1:
        raise InputError(f"Parameter `counts` should be at least two numbers of at least 1. Found {list(counts)}.")
    share = torch.tensor(counts, dtype=torch.float64) / sum(counts)
    centers = torch.stack([_unit(math.radians(angle))] * (len(counts) - 1) + [_unit(0.0)])
    return Quadratics(share, centers, torch.zeros(2, dtype=torch.float64))


TOYS: dict[str, Callable[[], Problem]] = {
    "tightness": tightness,
    "conflict": conflict,
    "logistic": logistic,
    "least-squares": least_squares,
    "many-classes": many_classes,
}
"""The toy problems at their default parameters."""


def _unit(angle: float) -> Tensor:
    return torch.tensor([math.cos(angle), math.sin(angle)], dtype=torch.float64)


def _drawn(counts: Sequence[int], dimension: int, seed: int) -> tuple[Tensor, Tensor]:
    if min(counts) < 1:
        raise InputError(f"Parameter `counts` should be at least 1 for every class. Found {list(counts)}.")
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    generator = torch.Generator().manual_seed(seed)
    return labels, torch.randn(len(labels), dimension, generator=generator, dtype=torch.float64)

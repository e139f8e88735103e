"""When a step lowers the loss of every class: conditions, their worst cases, the largest step that provably does."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from classgrad._errors import InputError
from classgrad.dynamics import (
    class_norms,
    condition,
    imbalance_ratio,
    normalizing_weights,
    omega,
    predicted_change,
    unit_gram,
)
from classgrad.theory._records import Statement, checked

RuleName = Literal["gd", "pcngd"]

CANCELLED = 1e-14
"""A sum smaller than this share of its terms' sizes is rounding, not a direction."""


def rule_weights(gram: Tensor, rule: RuleName | Tensor) -> Tensor:
    """Return the weights w of the direction Σ_l w_l g_l: ones for GD, 1/‖g_l‖ for PCNGD, a tensor as it is."""
    if isinstance(rule, Tensor):
        return rule
    table = {"gd": lambda: torch.ones_like(class_norms(gram)), "pcngd": lambda: normalizing_weights(gram)}
    if rule not in table:
        raise InputError(f"Parameter `rule` should be 'gd', 'pcngd' or a tensor of weights. Found {rule!r}.")
    return table[rule]()


def gd_margin(gram: Tensor, *, statement: Statement = "corrected") -> Tensor:
    """1 + C_t^(l) cos α^(l) (Eq. "condition"; Th. 1 and its multi-class version), shape (..., classes).

    GD lowers the loss of class l with a small enough step exactly where this is positive. ``printed`` takes the C_t
    of App. "Notation", ‖g_1‖/‖g_0‖ for both classes (two classes only), which is upside down for class 1.

    >>> opposed = torch.tensor([[100.0, -5.0], [-5.0, 1.0]])  # norms 10 and 1, cos α = -1/2
    >>> gd_margin(opposed)  # class 1 is about to get worse
    tensor([ 0.9500, -4.0000], dtype=torch.float64)
    >>> gd_margin(opposed, statement="printed")
    tensor([0.9500, 0.9500], dtype=torch.float64)
    """
    checked(statement, "corrected", "printed")
    margin = condition(gram)
    if statement == "corrected":
        return margin
    if gram.shape[-1] != 2:
        raise InputError(
            f"Parameter `statement` should be 'corrected' with {gram.shape[-1]} classes: the printed C_t is for 2."
        )
    return margin[..., :1].expand_as(margin)


def pcn_margin(gram: Tensor, *, statement: Statement = "corrected") -> Tensor:
    """1 + C̃_t^(l) cos α^(l) with C̃_t^(l) = ‖Σ_{i≠l} g_i/‖g_i‖‖ (Eq. "multi_cos_cond_PCNGD"), shape (..., classes).

    PCNGD lowers the loss of class l with a small enough step exactly where this is positive. It is the ω_t of the
    corrected PCNGD bounds. ``printed`` is 1 + cos α^(l), which the printed theorems ask to be non-zero: the same with
    two classes, not enough with more.

    >>> g = torch.tensor([[1.0, 0.0], [-1.0, 1.0], [-1.0, 1.0]])  # class 0 against two equal ones, at 135°
    >>> pcn_margin(g @ g.T)[0] < 0, pcn_margin(g @ g.T, statement="printed")[0] > 0
    (tensor(True), tensor(True))
    """
    checked(statement, "corrected", "printed")
    return condition(unit_gram(gram)) if statement == "corrected" else omega(gram)


def worst_ratio(counts: Tensor, rule: RuleName = "gd") -> Tensor:
    """Worst case of C_t^(l), all other gradients collinear and as long as their classes are large, shape (classes,).

    GD: Σ_{i≠l} n_i / n_l (Eq. "imbal_GD_range"); PCNGD: L - 1 whatever the counts (Eq. "imbal_PCNGD_range").

    >>> worst_ratio(torch.tensor([50, 30, 20])).tolist(), worst_ratio(torch.tensor([50, 30, 20]), "pcngd").tolist()
    ([1.0, 2.3333333333333335, 4.0], [2.0, 2.0, 2.0])
    """
    counts = torch.as_tensor(counts, dtype=torch.float64)
    if counts.ndim != 1 or not bool((counts > 0).all()):
        raise InputError(f"Parameter `counts` should be one number above 0 per class. Found {counts.tolist()}.")
    if rule == "pcngd":
        return torch.full_like(counts, len(counts) - 1)
    return (counts.sum() - counts) / counts


def largest_step(
    gram: Tensor,
    smoothness: Tensor | float,
    rule: RuleName | Tensor = "gd",
    *,
    statement: Statement = "corrected",
) -> Tensor:
    """Step size below which f^(l)(x - η d) < f^(l)(x) is proved, 0 where no step is, shape (..., classes).

    By the descent lemma f^(l) changes by at most -η (K w)_l + L_2 η² wᵀKw / 2, so the limit is
    2 (K w)_l / (L_2 wᵀKw); for isotropic quadratics nothing larger works (App. "Tightness"). For PCNGD with two
    classes it is ‖g_l‖/L_2 at any angle. ``printed`` is the paper's smaller one: (1 + C cos α)/(L_2 (1 + C²)) for GD,
    (1 + cos α)‖g_l‖/(2 L_2) for PCNGD with two classes. Every class at once: the minimum over the last axis.

    >>> largest_step(torch.eye(2), 1.0).tolist()
    [1.0, 1.0]
    """
    checked(statement, "corrected", "printed")
    smooth = torch.as_tensor(smoothness, dtype=torch.float64)
    weights = rule_weights(gram, rule)
    slope = -predicted_change(gram, weights, 1.0)
    terms = -predicted_change(gram.abs(), weights.abs(), 1.0)
    if statement == "printed":
        limit = _printed_step(gram, rule) / smooth
    else:
        limit = 2 * slope / (smooth * direction_length(gram, weights))
    return torch.where(slope > CANCELLED * terms, limit, 0.0)


def direction_length(gram: Tensor, weights: Tensor) -> Tensor:
    """‖Σ_l w_l g_l‖² = wᵀKw, shape (..., 1)."""
    change = -predicted_change(gram, weights, 1.0)
    return (change * weights).sum(-1, keepdim=True).clamp(min=0)


def _printed_step(gram: Tensor, rule: RuleName | Tensor) -> Tensor:
    if isinstance(rule, str) and rule == "gd":
        return condition(gram) / (1 + imbalance_ratio(gram).square())
    if isinstance(rule, str) and rule == "pcngd" and gram.shape[-1] == 2:
        return omega(gram) * class_norms(gram) / 2
    raise InputError(
        "Parameter `statement` should be 'corrected': the paper prints a step for 'gd', and 'pcngd' with 2 classes."
    )

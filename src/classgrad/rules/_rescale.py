"""Per-class normalization that also undoes the attenuation by directional noise."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from classgrad._errors import InputError
from classgrad.rules._rule import ClassStatistics, Need, Rule, inverse, required

Form = Literal["paper", "authors"]
Negative = Literal["skip", "clamp", "keep"]


class Rescale(Rule):
    """PCNSGD+R (Alg. 5): w_l = 1/(p_l ‖g_l‖).

    p_l = ⟨g_l/‖g_l‖, G_l/‖G_l‖⟩ is the projection of the batch's class direction on the full-batch one (Eq. 8), so
    that each class moves by the same amount along its full-batch direction. The full-batch class gradients G_l come
    from ``ClassGradients.refresh`` and are meant to be renewed every ``every`` steps (paper: 5).

    A projection near zero would make the step arbitrarily long, so positive ones below ``floor`` count as ``floor``
    (0 turns this off). A projection at or below zero means that the batch's direction raises the class's loss:

    - ``on_negative="skip"`` leaves the class out of the step;
    - ``"clamp"`` treats it as ``floor``;
    - ``"keep"`` divides by it as Alg. 5 is written, which reverses the direction (p_l = 0 is left out).

    ``form="authors"`` is what the released code does: each unit gradient times the product of the *other* classes'
    projections, which is the paper's weight times Π_k p_k. ``floor`` and ``on_negative`` do not apply to it.
    """

    needs: frozenset[Need] = frozenset({"norms", "projections"})

    def __init__(
        self, every: int = 5, *, floor: float = 0.1, on_negative: Negative = "skip", form: Form = "paper"
    ) -> None:
        if type(every) is not int or every < 1:
            raise InputError(f"Parameter `every` should be a whole number of at least 1. Found {every!r}.")
        if not (isinstance(floor, (int, float)) and 0 <= floor < 1):
            raise InputError(f"Parameter `floor` should be at least 0 and below 1. Found {floor!r}.")
        for name, value, choices in (("on_negative", on_negative, Negative), ("form", form, Form)):
            if value not in get_args(choices):
                raise InputError(
                    f"Parameter `{name}` should be one of {', '.join(get_args(choices))}. Found {value!r}."
                )
        if on_negative == "clamp" and floor == 0:
            raise InputError("Parameter `floor` should be above 0 with on_negative='clamp'. Found 0.")
        self.every = every
        self.floor = floor
        self.on_negative = on_negative
        self.form = form
        self.separable = form == "paper"

    def __call__(self, statistics: ClassStatistics) -> Tensor:
        """Return 1/(p_l ‖g_l‖), or the authors' Π_{k≠l} p_k / ‖g_l‖."""
        p = required(statistics.projections)
        unit = inverse(required(statistics.norms), statistics.active)
        if self.form == "authors":
            return unit * product_of_others(p.where(statistics.active, p.new_ones(())))
        if self.on_negative != "keep":
            positive = p.clamp_min(self.floor)
            p = positive if self.on_negative == "clamp" else positive.where(p > 0, p.new_zeros(()))
        elif self.floor > 0:
            p = p.where((p <= 0) | (p >= self.floor), p.new_full((), self.floor))
        return unit * inverse(p, p != 0)

    def __repr__(self) -> str:
        return f"Rescale(every={self.every}, floor={self.floor}, on_negative={self.on_negative!r}, form={self.form!r})"


def product_of_others(p: Tensor) -> Tensor:
    """Return Π_{k≠l} p_k for each l without dividing, so that zeros are allowed.

    >>> product_of_others(torch.tensor([2.0, 3.0, 0.0]))
    tensor([0., 0., 6.])
    """
    one = p.new_ones(1)
    before = torch.cat([one, p[:-1]]).cumprod(0)
    after = torch.cat([p[1:], one]).flip(0).cumprod(0).flip(0)
    return before * after

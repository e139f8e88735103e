"""Linear, with any leading dimensions after the examples."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from classgrad.gradients._capture import Call
from classgrad.gradients._cost import ghost_is_cheaper
from classgrad.gradients._layout import ClassLayout
from classgrad.gradients._products import class_products, ghost_gram, ghost_square_norms
from classgrad.gradients._registry import LayerRule, add_rule, leading
from classgrad.gradients._terms import Memory, Sums, Term, promote, weigh


class RowsTerm(Term):
    """A weight whose class gradient is Σ_i b_iᵀ a_i over rows a (N, R, D) and b (N, R, O), grouped by class."""

    def __init__(self, a: Tensor, b: Tensor, layout: ClassLayout, shape: torch.Size, memory: Memory) -> None:
        super().__init__(len(layout), shape, b.dtype, memory)
        self.a = a
        self.b = b
        self.layout = layout
        cost = (a.shape[1], a.shape[2], b.shape[2], layout, a.device.type)
        self.ghost = ghost_is_cheaper(*cost)
        self.ghost_gram = ghost_is_cheaper(*cost, gram=True)

    def dense(self, start: int, stop: int) -> Tensor:
        """Return the classes' sums of outer products."""
        first, last = self.layout.span(start, stop)
        return class_products(self.a[first:last], self.b[first:last], self.layout.sizes[start:stop]).view(
            -1, *self.shape
        )

    def without(self, gram: bool) -> bool:
        """Whether the ghost identity is cheaper."""
        return self.ghost_gram if gram else self.ghost

    def fill(self, out: Tensor) -> None:
        """Write the classes' sums of outer products."""
        class_products(self.a, self.b, self.layout.sizes, out.flatten(2))

    def weighted(self, weights: Tensor, finite: bool) -> Tensor:
        """Return one ordinary weight gradient with b scaled by the weights."""
        if self._kept is not None:
            return weigh(weights, self._kept, finite)
        a, b, unit = weighted_examples(self.a, self.b, weights, self.layout, finite)
        return in_units((b.reshape(-1, b.shape[2]).T @ a.reshape(-1, a.shape[2])).view(self.shape), unit)

    def square_norms(self) -> Tensor:
        """Return the squared norms, by the ghost identity where that is cheaper."""
        if self.ghost:
            return ghost_square_norms(self.a, self.b, self.layout.sizes, self.memory.limit)
        return super().square_norms()

    def gram(self) -> Tensor:
        """Return the Gram matrix, likewise."""
        if self.ghost_gram:
            return ghost_gram(self.a, self.b, self.layout.sizes)
        return super().gram()


def weighted_examples(
    a: Tensor, b: Tensor, weights: Tensor, layout: ClassLayout, finite: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return grouped inputs, output gradients times the weight of their class, and the unit of these weights.

    Half precision holds no weight of 1e5 or 1e-8, so there they are counted in units of the largest.
    """
    unit = None
    if promote(b[:0]).dtype != b.dtype:
        unit = weights.abs().max().clamp_min(torch.finfo(weights.dtype).tiny)
        weights = weights / unit
    factors = weights.to(b.dtype)[layout.grouped_index]
    if not finite:
        a, b = (v.where(_over(factors != 0, v), v.new_zeros(())) for v in (a, b))
    return a, b * _over(factors, b), unit


def in_units(gradient: Tensor, unit: Tensor | None) -> Tensor:
    """Return what was made with weights in units of ``unit``."""
    return gradient if unit is None else promote(gradient) * unit


def _over(factors: Tensor, values: Tensor) -> Tensor:
    return factors.view(-1, *[1] * (values.dim() - 1))


def linear_terms(call: Call, b: Tensor, layout: ClassLayout, memory: Memory, wanted: frozenset[str]) -> dict[str, Term]:
    """Weight: rows; bias: the sum of b over the positions."""
    module = call.module
    assert isinstance(module, nn.Linear)
    b = b.reshape(len(b), -1, b.shape[-1])
    terms: dict[str, Term] = {}
    if "bias" in wanted:
        terms["bias"] = Sums(b.sum(1) if b.shape[1] > 1 else b[:, 0], layout, memory)
    if "weight" in wanted:
        a = call.input.reshape(len(b), -1, call.input.shape[-1]).to(b.dtype)
        terms["weight"] = RowsTerm(layout.group(a), layout.group(b), layout, module.weight.shape, memory)
    return terms


add_rule(nn.Linear, LayerRule(("weight", "bias"), linear_terms, leading))

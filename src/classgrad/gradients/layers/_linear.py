"""Linear, with any leading dimensions after the examples."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from classgrad.gradients import kernels
from classgrad.gradients._layout import ClassLayout
from classgrad.gradients.layers._registry import LayerRule, add_rule, leading
from classgrad.gradients.layers._taps import Call
from classgrad.gradients.terms._cost import (
    Cost,
    ghost_is_cheaper,
    kernel_gathers,
    kernel_makes_unequal,
    kernel_weighs,
    kind_of,
    rates,
    tile_of,
)
from classgrad.gradients.terms._ghost import ghost_gram, ghost_square_norms
from classgrad.gradients.terms._products import class_products, equal_products
from classgrad.gradients.terms._terms import HALF, Dense, Memory, Sums, Term, promote, weigh


class ExamplesTerm(Term):
    """A weight whose class gradients follow from inputs a and output gradients b of its examples, (N, ...) each.

    Both stay in the order of the batch; the examples of some classes at a time are brought into class order.
    """

    def __init__(
        self,
        a: Tensor,
        b: Tensor,
        layout: ClassLayout,
        shape: torch.Size,
        memory: Memory,
        cost: Cost,
        example_bytes: int,
    ) -> None:
        super().__init__(len(layout), shape, b.dtype, memory)
        self.a = a
        self.b = b
        self.layout = layout
        self.cost = cost
        self._at_a_time = max(1, rates(cost[4]).rows_bytes // max(1, example_bytes))

    @property
    def _has_kernels(self) -> bool:
        return kernels.available(self.b) and self.a.dtype == self.b.dtype

    @property
    def unequal(self) -> bool:
        """Whether classes are of different sizes and the kernel makes them all at once sooner than one by one."""
        if self.layout.equal is not None:
            return False
        positions, inner, outer = self.cost[:3]
        rows = self.layout.examples * positions
        return self._has_kernels and kernel_makes_unequal(rows, inner, outer, self.layout)

    def moved(self, a: Tensor, b: Tensor, layout: ClassLayout, memory: Memory) -> ExamplesTerm:
        """Return the same for other values of the same kind."""
        moved = copy.copy(self)
        moved.a, moved.b, moved.layout, moved.memory = a, b, layout, memory
        moved.cost = (*self.cost[:3], layout, self.cost[4])
        return moved

    def grouped(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Return the examples of a range of classes in class order, good until the next call."""
        a, b, order = self.a, self.b, self.layout.order
        if stop - start < self.classes:
            first, last = self.layout.span(start, stop)
            if order is None:
                return a[first:last], b[first:last]
            order = order[first:last]
        elif order is None:
            return a, b
        scratch = self.memory.scratch
        return scratch.gathered("a", a, order), scratch.gathered("b", b, order)

    def owners(self, start: int, stop: int) -> Tensor:
        """Return the classes of the examples that :meth:`grouped` returns, counted from the first of them."""
        first, last = self.layout.span(start, stop)
        owners = self.layout.grouped_index[first:last]
        return owners - start if start else owners

    def parts(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Split a range of classes so that no part has more examples than should be worked on at a time."""
        if self.layout.examples <= self._at_a_time:
            yield start, stop
            return
        first = start
        examples = 0
        for position in range(start, stop):
            examples += self.layout.sizes[position]
            if examples > self._at_a_time and position > first:
                yield first, position
                first, examples = position, self.layout.sizes[position]
        yield first, stop

    def write_products(self, out: Tensor, start: int, stop: int) -> None:
        """Write the gradients of a range of classes as products of rows, to an (L, O, D) tensor."""
        if self.unequal and stop - start == self.classes:
            precision, place = self.memory.products, self.memory.scratch.place
            segments = self.layout.segments
            kernels.linear_products(*self.rows(start, stop), segments, precision=precision, out=out, place=place)
            return
        for i, j in self.parts(start, stop):
            part = out if j - i == len(out) else out[i - start : j - start]
            if self.layout.equal and j > i:
                equal_products(*self.rows(i, j), j - i, part)
            else:
                class_products(*self.rows(i, j), self.layout.sizes[i:j], part)

    def rows(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Return a range of classes in class order as rows."""
        return self.as_rows(*self.grouped(start, stop))

    def paired(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Return them with their columns in any order, for products of rows with each other."""
        return self.rows(start, stop)

    @abstractmethod
    def as_rows(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """Return examples as rows, (N, R, D) and (N, R, O), of which b^T a is the gradient."""

    @abstractmethod
    def write(self, out: Tensor, start: int, stop: int) -> None:
        """Write the gradients of a range of classes."""

    def dense(self, start: int, stop: int) -> Tensor:
        """Return the gradients of a range of classes."""
        out = self.b.new_empty(stop - start, *self.shape)
        self.write(out, start, stop)
        return out

    def fill(self, out: Tensor) -> None:
        """Write the gradients of all classes."""
        self.write(out, 0, self.classes)

    @property
    def weighs(self) -> bool:
        """Whether the kernel for products makes the weighted sum, of examples as they lie."""
        return False

    @property
    def at_once(self) -> bool:
        """Whether class gradients are not made, and the kernel makes their sum without them."""
        return self._kept is None and self.weighs

    def weighted(self, weights: Tensor, finite: bool) -> Tensor:
        """Return one ordinary weight gradient with b scaled by the weights."""
        if self._kept is not None:
            return weigh(weights, self._kept, finite)
        if self.weighs:
            out = self.b.new_empty(self.shape)
            self.weigh_into(weights, out)
            return out
        a, b, unit = weighted_examples(self.a, self.b, weights, self.layout, finite)
        return in_units(self.gradient(a, b), unit)

    def weigh_into(self, weights: Tensor, out: Tensor) -> None:
        """Write the weighted sum, at once where the kernel makes it."""
        if self.at_once:
            weighed = (weights.to(self.b.dtype).contiguous(), self.layout.index)
            self.multiply(kernels.one_segment(self.layout.examples, self.b.device), out=out[None], weighed=weighed)
        else:
            super().weigh_into(weights, out)

    @abstractmethod
    def multiply(self, segments: kernels.Segments, **how: Any) -> None:
        """Have the kernel write the gradients of these classes, of the examples as they lie.

        ``how`` says what the kernels for products take by name: ``out``, ``order`` and ``weighed``.
        """

    @abstractmethod
    def gradient(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the ordinary weight gradient of some examples."""

    def square_norms(self) -> Tensor:
        """Return the squared norms, by the ghost identity where that is cheaper."""
        if self.without(gram=False):
            rows_each = self.layout.make_up.largest * self.cost[0]
            if self._has_kernels and rows_each > 1 and self.layout.examples <= self._at_a_time:
                segments, order = self.layout.segments, self.layout.order
                tile = tile_of(self.layout, self.cost[0])[0]
                precision, scratch = self.memory.products, self.memory.scratch
                a, b = self.as_rows(self.a, self.b)
                b, place = scratch.contiguous("b", b), scratch.place
                return kernels.ghost_norms(a, b, segments, tile, precision=precision, order=order, place=place)
            limit, sizes = self.memory.limit, self.layout.sizes
            parts = self.parts(0, self.classes)
            return torch.cat(
                [ghost_square_norms(*self.paired(i, j), sizes[i:j], self.owners(i, j), limit) for i, j in parts]
            )
        return super().square_norms()

    def gram(self) -> Tensor:
        """Return the Gram matrix, likewise."""
        if self.without(gram=True):
            return ghost_gram(*self.paired(0, self.classes), self.classes, self.owners(0, self.classes))
        return super().gram()


class RowsTerm(ExamplesTerm):
    """A weight whose class gradient is Σ_i b_iᵀ a_i over rows a (N, R, D) and b (N, R, O)."""

    def __init__(self, a: Tensor, b: Tensor, layout: ClassLayout, shape: torch.Size, memory: Memory) -> None:
        row_bytes = (a.shape[2] + b.shape[2]) * a.element_size()
        cost = (a.shape[1], a.shape[2], b.shape[2], layout, kind_of(a, layout))
        super().__init__(a, b, layout, shape, memory, cost, a.shape[1] * row_bytes)

    def as_rows(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """Return the examples as they are."""
        return a, b

    def write(self, out: Tensor, start: int, stop: int) -> None:
        """Write the classes' sums of outer products; the kernel gathers shuffled examples as it reads them."""
        if stop - start == self.classes and (self.unequal or self._gathers):
            self.multiply(self.layout.segments, out=out, order=self.layout.order)
        else:
            self.write_products(out, start, stop)

    @property
    def _gathers(self) -> bool:
        positions, inner, outer, layout, device = self.cost
        shuffled = layout.order is not None
        rows = layout.examples * positions
        return self._has_kernels and kernel_gathers(rows, inner, outer, layout, device, shuffled=shuffled)

    def without(self, gram: bool) -> bool:
        """Whether the ghost identity is cheaper."""
        return ghost_is_cheaper(*self.cost, gram=gram)

    @property
    def weighs(self) -> bool:
        """Whether the kernel weighs the rows as it multiplies them."""
        lies = self.a.is_contiguous() and self.b.is_contiguous()
        return lies and self._has_kernels and kernel_weighs(*self.cost)

    def multiply(self, segments: kernels.Segments, **how: Any) -> None:
        """Have the kernel write the classes' sums of outer products."""
        precision, place = self.memory.products, self.memory.scratch.place
        kernels.linear_products(self.a, self.b, segments, precision=precision, place=place, **how)

    def gradient(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the product of the rows."""
        return (b.flatten(0, 1).T @ a.flatten(0, 1)).view(self.shape)


def weighted_examples(
    a: Tensor, b: Tensor, weights: Tensor, layout: ClassLayout, finite: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return inputs, output gradients times the weight of their class, and the unit of these weights.

    Half precision holds no weight of 1e5 or 1e-8, so there they are counted in units of the largest.
    """
    unit = None
    if b.dtype in HALF:
        unit = weights.abs().max().clamp_min(torch.finfo(weights.dtype).tiny)
        weights = weights / unit
    weights = weights.to(b.dtype)
    if not finite and all(kernels.available(v) and kernels.lies_by_examples(v) for v in (a, b)):
        return *kernels.weigh_examples(a, b, weights, layout.index), unit
    factors = weights.index_select(0, layout.index)
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
    given, flat = b, b.dim() != 3
    b = b.reshape(b.shape[0], b.shape[1:-1].numel(), b.shape[-1]) if flat else b
    terms: dict[str, Term] = {}
    if "bias" in wanted:
        if layout.adds_at_once and kernels.available(b):
            terms["bias"] = Dense(kernels.class_row_sums(b, layout.segments), memory)
        else:
            terms["bias"] = Sums(given if given.dim() == 2 else b.sum(1), layout, memory)
    if "weight" in wanted:
        a = call.input
        a = a.reshape(*b.shape[:2], a.shape[-1]) if flat else a
        a = a if a.dtype == b.dtype else a.to(b.dtype)
        terms["weight"] = RowsTerm(a, b, layout, call.parameters["weight"].shape, memory)
    return terms


add_rule(
    nn.Linear, LayerRule(("weight", "bias"), linear_terms, leading, blind=frozenset({"bias"}), options=lambda _: ())
)

"""The class gradients of one parameter, in whatever form is cheapest to hold."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from classgrad.gradients import kernels
from classgrad.gradients._layout import ClassLayout
from classgrad.gradients.terms._scratch import Scratch
from classgrad.gradients.terms._sheet import Block, Sheet

HALF = (torch.float16, torch.bfloat16)
"""Dtypes in which sums over classes and examples would lose too much."""

SMALL = 2**14
"""Elements up to which gradients are put side by side: copying them costs less than an operation of their own."""

LARGE = 2**22
"""Elements of all classes from which on gradients stay where they are: copying them costs more than an operation."""


class Memory:
    """The bytes that class gradients may take, shared by the terms of a step, and the places and ways they work in."""

    def __init__(self, limit: int, scratch: Scratch | None = None) -> None:
        self.limit = limit
        self.left = limit
        self.scratch = scratch or Scratch()

    @cached_property
    def products(self) -> str:
        """How matrix products of single precision are made on a GPU, in the kernels' words."""
        return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee"

    @cached_property
    def convolutions(self) -> str:
        """How convolutions are, likewise."""
        settings: Any = torch.backends.cudnn
        return "tf32" if settings.conv.fp32_precision == "tf32" else "ieee"

    @contextmanager
    def worked_in(self, scratch: Scratch) -> Iterator[None]:
        """Have the terms work in other places for a while."""
        usual, self.scratch = self.scratch, scratch
        try:
            yield
        finally:
            self.scratch = usual

    def take(self, size: int) -> bool:
        """Reserve ``size`` bytes if they are left."""
        if size > self.left:
            return False
        self.left -= size
        return True


class Term(ABC):
    """The L class gradients of one parameter; sums over the classes' examples, times the seed of the backward pass.

    A term need not hold them: it can make those of a range of classes (``dense``) and their weighted sum
    (``weighted``). Everything else follows from these two within the memory limit, and forms that know a shorter way
    override it.
    """

    def __init__(self, classes: int, shape: torch.Size, dtype: torch.dtype, memory: Memory) -> None:
        self.classes = classes
        self.shape = shape
        self.dtype = dtype
        self.memory = memory
        self._kept: Tensor | None = None

    @abstractmethod
    def dense(self, start: int, stop: int) -> Tensor:
        """Return the gradients of classes ``start`` … ``stop`` − 1, shape (stop − start, *shape)."""

    @abstractmethod
    def weighted(self, weights: Tensor, finite: bool) -> Tensor:
        """Return Σ_l w_l g_l.

        Unless all class gradients are known to be ``finite``, those of weight zero are left out of the sum rather than
        multiplied, since 0 × inf is NaN.
        """

    @property
    def at_once(self) -> bool:
        """Whether :meth:`weigh_into` is fit to be recorded: a launch or two, in memory of the step."""
        return False

    def weigh_into(self, weights: Tensor, out: Tensor) -> None:
        """Write Σ_l w_l g_l, without class gradients of weight zero, which need not be finite."""
        out.copy_(self.weighted(weights, finite=False))

    @property
    def bytes_per_class(self) -> int:
        """The size of one class gradient, at least in single precision."""
        return max(4, self.dtype.itemsize) * self.shape.numel()

    @property
    def kept(self) -> Tensor | None:
        """The class gradients, if they are held."""
        return self._kept

    def keep(self) -> Tensor | None:
        """Make and hold all class gradients if memory allows; from then on everything is read off them."""
        if self._kept is None and self.memory.take(self.classes * self.bytes_per_class):
            self._kept = self.dense(0, self.classes)
        return self._kept

    def without(self, gram: bool) -> bool:
        """Whether norms (or the Gram matrix) are had more cheaply without making the class gradients."""
        return False

    def fill(self, out: Tensor) -> None:
        """Write the class gradients into an (L, *shape) tensor, whatever is in it."""
        out.copy_(self.dense(0, self.classes))

    def settle(self, sheet: Sheet, like: Tensor, gram: bool) -> Term:
        """Return the class gradients on the sheet, so that what they are made of can be let go; or just this term.

        It stays as it is where they are better not made, or memory does not allow for it.
        """
        if self.without(gram) or not self.memory.take(self.classes * self.bytes_per_class):
            sheet.skip(self.shape)
            return self
        out, block, column = sheet.place(self.shape, promote(like))
        self.fill(out)
        return Dense(out, self.memory, block, column)

    def square_norms(self) -> Tensor:
        """Return ‖g_l‖² for each class, in float64 where the gradients are."""
        return _cat([_square_norms(rows(part)) for _, part in self._chunks()])

    def gram(self) -> Tensor:
        """Return ⟨g_i, g_j⟩ for all pairs of classes."""
        bands = []
        for start, part in self._chunks():
            left = rows(part)
            blocks = [left @ (left if s == start else rows(other)).T for s, other in self._chunks()]
            bands.append(torch.cat(blocks, 1))
        return torch.cat(bands)

    def dot(self, references: Sequence[Tensor | None]) -> Tensor:
        """Return ⟨g_l, reference_l⟩ for each class (0 without a reference)."""
        parts = []
        for start, part in self._chunks():
            for row, reference in zip(rows(part), references[start : start + len(part)], strict=True):
                parts.append(row.new_zeros(()) if reference is None else row @ rows(reference[None])[0])
        return torch.stack(parts)

    def _chunks(self) -> Iterator[tuple[int, Tensor]]:
        kept = self.keep()
        if kept is not None:
            yield 0, kept
            return
        # One class at a time is the least that can be done, whatever the limit.
        size = max(1, self.memory.left // max(1, 2 * self.bytes_per_class))
        for start in range(0, self.classes, size):
            yield start, self.dense(start, min(start + size, self.classes))


def _cat(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def promote(values: Tensor) -> Tensor:
    """Return half-precision values as float32, others as they are."""
    return values.float() if values.dtype in HALF else values


def rows(values: Tensor) -> Tensor:
    """Return (L, ...) as an (L, elements) matrix of real numbers in at least single precision."""
    values = torch.view_as_real(values) if values.is_complex() else promote(values)
    return values if values.dim() == 2 else values.reshape(values.shape[0], -1)


class Dense(Term):
    """Class gradients that are held as they are, on a block of a sheet from ``column`` on or by themselves."""

    def __init__(self, gradients: Tensor, memory: Memory, block: Block | None = None, column: int = 0) -> None:
        super().__init__(gradients.shape[0], gradients.shape[1:], gradients.dtype, memory)
        self._kept = self.held = gradients
        self.block = block
        self.column = column

    def settle(self, sheet: Sheet, like: Tensor, gram: bool) -> Term:
        """Stay where it is if large."""
        if self.held.numel() < LARGE:
            return super().settle(sheet, like, gram)
        sheet.skip(self.shape)
        return self

    def dense(self, start: int, stop: int) -> Tensor:
        """Return a view."""
        assert self._kept is not None
        return self._kept[start:stop]

    def weighted(self, weights: Tensor, finite: bool) -> Tensor:
        """Return the weighted sum."""
        assert self._kept is not None
        return weigh(weights, self._kept, finite)

    @property
    def at_once(self) -> bool:
        """It is there to be read."""
        return True

    def weigh_into(self, weights: Tensor, out: Tensor) -> None:
        """Write the weighted sum, at once where a kernel makes it."""
        values = rows(self.held)
        if kernels.available(values) and values.stride(1) == 1:
            kernels.weighted_sum(values, weights.to(values.dtype), out.view(-1))
        else:
            super().weigh_into(weights, out)


def _square_norms(values: Tensor) -> Tensor:
    if kernels.available(values) and values.stride(1) == 1:
        return kernels.row_square_norms(values)
    norms: Tensor = torch.linalg.vector_norm(values, dim=1)
    return norms.square()


def weigh(weights: Tensor, gradients: Tensor, finite: bool) -> Tensor:
    """Return Σ_l w_l g_l from (L, ...) class gradients; see :meth:`Term.weighted`."""
    values = rows(gradients)
    weights = weights.to(values.dtype)
    if kernels.available(values) and values.stride(1) == 1:
        return kernels.weighted_sum(values, weights).view(gradients.shape[1:])
    if not finite:
        values = values.where((weights != 0)[:, None], values.new_zeros(()))
    if gradients.is_complex():
        return torch.view_as_complex((weights @ values).view(*gradients.shape[1:], 2))
    return (weights @ values).view(gradients.shape[1:])


class Sums(Term):
    """Gradients of every example by itself, (N, *shape), in the order of the batch: for parameters of few elements."""

    def __init__(self, values: Tensor, layout: ClassLayout, memory: Memory) -> None:
        super().__init__(len(layout), values.shape[1:], values.dtype, memory)
        self.held = values
        self.layout = layout

    def settle(self, sheet: Sheet, like: Tensor, gram: bool) -> Term:
        """Leave small ones to be summed all at once; they are when a step is made."""
        if self.shape.numel() > SMALL:
            return super().settle(sheet, like, gram)
        sheet.skip(self.shape)
        return self

    def dense(self, start: int, stop: int) -> Tensor:
        """Return the sums by class."""
        return self.layout.sum(self.held)[start:stop]

    def weighted(self, weights: Tensor, finite: bool) -> Tensor:
        """Return the weighted sum of the sums."""
        return weigh(weights, self.dense(0, self.classes), finite)


class Total(Term):
    """The sum of several terms: a parameter that is used more than once."""

    def __init__(self, terms: Sequence[Term]) -> None:
        super().__init__(terms[0].classes, terms[0].shape, terms[0].dtype, terms[0].memory)
        self.terms = terms

    def dense(self, start: int, stop: int) -> Tensor:
        """Return the sum of the parts' class gradients."""
        return torch.stack([term.dense(start, stop) for term in self.terms]).sum(0)

    def weighted(self, weights: Tensor, finite: bool) -> Tensor:
        """Return the sum of the parts' weighted sums, or that of the kept gradients."""
        if self._kept is not None:
            return weigh(weights, self._kept, finite)
        return torch.stack([term.weighted(weights, finite) for term in self.terms]).sum(0)


class Stack(Term):
    """Several matrices in one parameter, of terms of their own."""

    def __init__(self, terms: Sequence[Term]) -> None:
        first = terms[0]
        super().__init__(first.classes, torch.Size((len(terms), *first.shape)), first.dtype, first.memory)
        self.terms = terms

    def dense(self, start: int, stop: int) -> Tensor:
        """Return the matrices' class gradients one behind the other."""
        return torch.stack([term.dense(start, stop) for term in self.terms], 1)

    def weighted(self, weights: Tensor, finite: bool) -> Tensor:
        """Return their weighted sums, or that of the kept gradients."""
        if self._kept is not None:
            return weigh(weights, self._kept, finite)
        return torch.stack([term.weighted(weights, finite) for term in self.terms])

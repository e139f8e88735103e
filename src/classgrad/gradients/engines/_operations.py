"""Operations by which a parameter comes to the examples outside of any layer that has a rule.

Each tells how the gradient of what it makes becomes the class gradients of one of its inputs, once it is known where
in that gradient the examples are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from classgrad.gradients._layout import ClassLayout
from classgrad.gradients.engines._joint import fresh
from classgrad.gradients.layers._conv import ConvTerm, Sliding
from classgrad.gradients.layers._embedding import lookup_term
from classgrad.gradients.layers._linear import RowsTerm
from classgrad.gradients.terms._terms import Memory, Stack, Sums, Term, promote


class Rows(NamedTuple):
    """Where the examples are in a gradient: along one of its dimensions."""

    dimension: int
    order: Literal["alone", "slowest", "fastest"] = "alone"
    """Whether what else is flattened there changes faster than they, or slower, as steps of time that come first."""

    def of(self, values: Tensor, examples: int) -> Tensor:
        """Return values as (examples, ...); what they were flattened with stays where it was."""
        d, shape = self.dimension, values.shape
        fastest, others = self.order == "fastest", shape[d] // examples
        sizes = (others, examples) if fastest else (examples, others)
        return values.reshape(*shape[:d], *sizes, *shape[d + 1 :]).movedim(d + fastest, 0)


class Kind(NamedTuple):
    """What is known of values that are not at hand."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device


def _along(dimension: int, size: int, examples: int) -> list[Rows]:
    if size == examples:
        return [Rows(dimension)]
    return [] if size % examples or not size else [Rows(dimension, "slowest"), Rows(dimension, "fastest")]


class Use(ABC):
    """The use that an operation makes of one of its inputs.

    ``made`` and ``given`` tell of what comes out and of the input; ``saved`` is what the operation kept for its
    gradient, once it was taken up.
    """

    turns = True
    """Whether it gives the class gradients of what the input is the transpose of, if that is asked for."""

    def __init__(self, made: Kind, given: Kind, saved: Callable[[], Any]) -> None:
        self.made = made
        self.given = given
        self.saved: Any = None
        self._saved = saved

    def read(self) -> bool:
        """Take up what was saved, which autograd lets go of in a backward pass, unless it is sparse."""
        with fresh():
            saved = self._saved()
        dense = all(value.layout is torch.strided for value in _tensors(saved))
        self.saved = saved if dense else None
        return dense

    @property
    def kept(self) -> bool:
        """Whether what was saved is at hand, rather than made or fetched each time it is read, as by checkpoints."""
        again = zip(_tensors(self.saved), _tensors(self._saved()), strict=True)
        return all(one.data_ptr() == other.data_ptr() for one, other in again)

    def release(self) -> None:
        """Let go of it."""
        self.saved = None

    @abstractmethod
    def rows(self, examples: int) -> list[Rows]:
        """Return where the examples may be in the gradient, the usual place first."""

    def faced(self, b: Tensor) -> Tensor:
        """Return the gradient with the dimensions that ``rows`` speaks of."""
        return b

    @abstractmethod
    def term(self, b: Tensor, rows: Rows, turned: bool, layout: ClassLayout, memory: Memory) -> Term:
        """Return the class gradients of the input, or of that of which it is the transpose."""


def _tensors(saved: Any) -> list[Tensor]:
    return [value for value in (saved if isinstance(saved, tuple) else (saved,)) if isinstance(value, Tensor)]


class Spread(Use):
    """What all examples share is added to each of them, or multiplied with each.

    The gradient comes times a ``factor``, made of what was saved. Dimensions are those of what comes out from the last
    on, but for so many ``behind`` them.
    """

    def __init__(
        self,
        made: Kind,
        given: Kind,
        saved: Callable[[], tuple[Tensor, ...]] = tuple,
        factor: Callable[..., Tensor] | float = 1,
        behind: int = 0,
    ) -> None:
        super().__init__(made, given, saved)
        self._factor = factor
        own = [*given.shape, *[1] * behind]
        lead = len(made.shape) - len(own)
        self._over = [d for d, size in enumerate(made.shape) if d < lead or own[d - lead] != size]

    def rows(self, examples: int) -> list[Rows]:
        """Return the dimensions that it is spread over."""
        return [rows for d in self._over for rows in _along(d, self.made.shape[d], examples)]

    def term(self, b: Tensor, rows: Rows, turned: bool, layout: ClassLayout, memory: Memory) -> Term:
        """Sum over all that it is spread over but the examples."""
        b = promote(b)
        if self._factor != 1:
            b = b * (self._factor(*self.saved) if callable(self._factor) else self._factor)
        values = rows.of(b, layout.examples)
        summed = [d + 1 for d in self._over if values.shape[d + 1] != 1]
        values = values.sum(summed) if summed else values
        values = values.reshape(layout.examples, *self.given.shape)
        return Sums(values.mT if turned else values, layout, memory)


class Product(Use):
    """A matrix with the examples, which are rows on its left or ``columns`` on its right; saved are these.

    There may be several such pairs, one behind the other.
    """

    def __init__(self, made: Kind, given: Kind, saved: Callable[[], Tensor], columns: bool, factor: float = 1) -> None:
        super().__init__(made, given, saved)
        self._columns = columns
        self._factor = factor

    def rows(self, examples: int) -> list[Rows]:
        """Return the ways in which the rows may be those of the examples."""
        shape = self.made.shape
        return _along(0, shape[-1] if self._columns else shape[max(0, len(shape) - 2)], examples)

    def faced(self, b: Tensor) -> Tensor:
        """Return the gradient, or the examples' side, with the rows first."""
        b = b[:, None] if b.dim() == 1 else b
        b = b.mT if self._columns else b
        return b.movedim(-2, 0)

    def term(self, b: Tensor, rows: Rows, turned: bool, layout: ClassLayout, memory: Memory) -> Term:
        """Return sums of outer products of rows, as of a linear layer."""
        b = b * self._factor if self._factor != 1 else b
        a, b = (rows.of(self.faced(v), layout.examples) for v in (self.saved.to(b.dtype), b))
        if len(self.given.shape) == 1:
            return Sums((promote(b).mT @ promote(a))[:, 0], layout, memory)
        a, b = (a, b) if self._columns != turned else (b, a)
        if a.dim() == 3:
            return _matrix(a, b, layout, memory)
        return Stack([_matrix(*pair, layout, memory) for pair in zip(a.unbind(2), b.unbind(2), strict=True)])


def _matrix(a: Tensor, b: Tensor, layout: ClassLayout, memory: Memory) -> Term:
    return RowsTerm(a.contiguous(), b.contiguous(), layout, torch.Size((b.shape[2], a.shape[2])), memory)


class Convolution(Use):
    """A kernel that slides over the examples; saved are these and the kernel."""

    turns = False

    def __init__(
        self, made: Kind, given: Kind, saved: Callable[[], tuple[Tensor, Tensor]], padding: Sequence[int], *how: Any
    ) -> None:
        super().__init__(made, given, saved)
        self._padding = tuple(padding)
        self._how = how

    def rows(self, examples: int) -> list[Rows]:
        """Return the first dimension."""
        return [Rows(0)] if self.made.shape[0] == examples else []

    def term(self, b: Tensor, rows: Rows, turned: bool, layout: ClassLayout, memory: Memory) -> Term:
        """Return those of a layer's weight."""
        a, weight = self.saved
        return ConvTerm(Sliding(weight, *self._how), a.to(b.dtype), b, self._padding, layout, memory)


class Lookup(Use):
    """Rows of a table by the numbers that are saved."""

    turns = False

    def __init__(self, made: Kind, given: Kind, saved: Callable[[], Tensor], padding: int | None) -> None:
        super().__init__(made, given, saved)
        self._padding = padding

    def rows(self, examples: int) -> list[Rows]:
        """Return the dimensions of the numbers."""
        return [rows for d, size in enumerate(self.made.shape[:-1]) for rows in _along(d, size, examples)]

    def term(self, b: Tensor, rows: Rows, turned: bool, layout: ClassLayout, memory: Memory) -> Term:
        """Every row that was looked up receives b."""
        tokens, values = rows.of(self.saved, layout.examples), rows.of(b, layout.examples)
        owners = layout.index.repeat_interleave(tokens[0].numel())
        looked_up = (tokens.reshape(-1).long(), values.reshape(-1, b.shape[-1]), owners)
        return lookup_term(*looked_up, self.given.shape, self._padding, layout, memory)


def use_of(node: Any, slot: int) -> Use | None:
    """Return the use that an operation makes of one of its inputs, None if nothing is known of it."""
    make = _USES.get(node.name())
    made, given = (None, None) if make is None else (_kind(node, 0), _kind(*node.next_functions[slot]))
    return None if make is None or made is None or given is None or not made.shape else make(node, slot, made, given)


def _kind(node: Any, number: int) -> Kind | None:
    """Return what one of a node's results is, None if the node does not tell or nothing is known of such values."""
    metadata = getattr(node, "_input_metadata", None)
    if not metadata or metadata[number].is_nested_tensor or metadata[number].dtype.is_complex:
        return None
    return Kind(torch.Size(metadata[number].shape), metadata[number].dtype, metadata[number].device)


def _sum(node: Any, slot: int, made: Kind, given: Kind) -> Use:
    return Spread(made, given, factor=node._saved_alpha if slot else 1)


def _difference(node: Any, slot: int, made: Kind, given: Kind) -> Use:
    return Spread(made, given, factor=-node._saved_alpha if slot else 1)


def _multiple(node: Any, slot: int, made: Kind, given: Kind) -> Use:
    return Spread(made, given, lambda: (node._saved_self if slot else node._saved_other,), lambda other: other)


def _quotient(node: Any, slot: int, made: Kind, given: Kind) -> Use:
    if slot:
        return Spread(made, given, lambda: (node._saved_self, node._saved_other), lambda a, b: -a / b.square())
    return Spread(made, given, lambda: (node._saved_other,), torch.reciprocal)


def _expanded(node: Any, slot: int, made: Kind, given: Kind) -> Use:
    return Spread(made, given)


def _repeated(node: Any, slot: int, made: Kind, given: Kind) -> Use | None:
    lead = len(made.shape) - len(given.shape)
    once = all(size in (1, made.shape[lead + d]) for d, size in enumerate(given.shape))
    return _expanded(node, slot, made, given) if once else None


def _layer_norm(node: Any, slot: int, made: Kind, given: Kind) -> Use | None:
    if slot == 1:
        saved = lambda: (node._saved_input, node._saved_result1, node._saved_result2)  # noqa: E731
        return Spread(made, given, saved, lambda x, mean, rstd: (x - mean) * rstd)
    return Spread(made, given) if slot else None


def _group_norm(node: Any, slot: int, made: Kind, given: Kind) -> Use | None:
    def normal(x: Tensor, mean: Tensor, rstd: Tensor) -> Tensor:
        grouped = x.reshape(*mean.shape, -1)
        return ((grouped - mean[..., None]) * rstd[..., None]).view(x.shape)

    behind = len(made.shape) - 2
    if slot == 1:
        saved = lambda: (node._saved_input, node._saved_result1, node._saved_result2)  # noqa: E731
        return Spread(made, given, saved, normal, behind)
    return Spread(made, given, behind=behind) if slot else None


def _matrices(node: Any, slot: int, made: Kind, given: Kind) -> Use:
    """``mm`` and ``bmm``."""
    return Product(made, given, lambda: node._saved_self if slot else node._saved_mat2, columns=not slot)


def _matrix_and_vector(node: Any, slot: int, made: Kind, given: Kind) -> Use | None:
    """``mv``."""
    return Product(made, given, lambda: node._saved_self, columns=False) if slot else None


def _matrices_and_more(node: Any, slot: int, made: Kind, given: Kind) -> Use:
    """``addmm``: what is in slot 0 is added to a product."""
    if not slot:
        return Spread(made, given, factor=node._saved_beta)
    other = (lambda: node._saved_mat2) if slot == 1 else (lambda: node._saved_mat1)
    return Product(made, given, other, columns=slot == 1, factor=node._saved_alpha)


def _convolved(node: Any, slot: int, made: Kind, given: Kind) -> Use | None:
    if slot == 2:
        return Spread(made, given, behind=len(made.shape) - 2)
    how = (node._saved_stride, node._saved_dilation, node._saved_groups, node._saved_transposed)
    saved = lambda: (node._saved_input, node._saved_weight)  # noqa: E731
    return Convolution(made, given, saved, node._saved_padding, *how) if slot else None


def _looked_up(node: Any, slot: int, made: Kind, given: Kind) -> Use | None:
    if node._saved_scale_grad_by_freq or node._saved_sparse:
        return None
    padding: int = node._saved_padding_idx  # none is -1, which comes as a very large number
    return Lookup(made, given, lambda: node._saved_indices, padding if padding < given.shape[0] else None)


_USES: dict[str, Callable[[Any, int, Kind, Kind], Use | None]] = {
    "AddBackward0": _sum,
    "AddmmBackward0": _matrices_and_more,
    "BmmBackward0": _matrices,
    "ConvolutionBackward0": _convolved,
    "DivBackward0": _quotient,
    "EmbeddingBackward0": _looked_up,
    "ExpandBackward0": _expanded,
    "MmBackward0": _matrices,
    "MulBackward0": _multiple,
    "MvBackward0": _matrix_and_vector,
    "NativeGroupNormBackward0": _group_norm,
    "NativeLayerNormBackward0": _layer_norm,
    "RepeatBackward0": _repeated,
    "SubBackward0": _difference,
}
"""By the name of the operation's node."""

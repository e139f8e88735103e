"""Embedding and EmbeddingBag: only the rows that a batch looks up have a gradient."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from classgrad.gradients._layout import ClassLayout
from classgrad.gradients.layers._registry import LayerRule, add_rule
from classgrad.gradients.layers._taps import Call
from classgrad.gradients.terms._cost import kind_of
from classgrad.gradients.terms._terms import Dense, Memory, Term, promote

_GPU_ROWS = 8
"""Rows of tables on a GPU that cost no more than one that was looked up, which is nearly all operations."""

_TABLES = 2**24
"""Elements of tables up to which that many are made: more of them would cost memory."""


class LookupTerm(Term):
    """A table whose row ``tokens[r]`` receives ``values[r]`` for the class ``owners[r]``.

    Values of the same class and token are added up first, so norms cost what the batch looked up, not the table.
    """

    def __init__(
        self, tokens: Tensor, values: Tensor, owners: Tensor, classes: int, shape: torch.Size, memory: Memory
    ) -> None:
        super().__init__(classes, shape, values.dtype, memory)
        # Sorting brings equal keys side by side. There are at most as many different ones as rows; the slots beyond
        # stay zero, so that nothing here depends on a number a GPU would have to be waited for.
        keys, order = (owners * shape[0] + tokens).sort(stable=True)
        starts = torch.ones_like(keys)
        starts[1:] = keys[1:] != keys[:-1]
        slots = starts.cumsum(0) - 1
        self.sums = values.new_zeros(len(keys), shape[1])
        self.sums.index_put_((slots,), values[order], accumulate=True)  # unlike index_add_ deterministic on a GPU
        distinct = torch.zeros_like(keys).index_put_((slots,), keys)
        self.tokens = distinct % shape[0]
        self.owners = distinct // shape[0]

    def without(self, gram: bool) -> bool:
        """Return True: the rows that were looked up are all there is."""
        return True

    def dense(self, start: int, stop: int) -> Tensor:
        """Return the tables of a range of classes."""
        chosen = (self.owners >= start) & (self.owners < stop)
        out = self.sums.new_zeros(stop - start, *self.shape)
        place = (self.owners[chosen] - start, self.tokens[chosen])
        return out.index_put_(place, self.sums[chosen], accumulate=True)  # empty slots share a place with a real one

    def weighted(self, weights: Tensor, finite: bool) -> Tensor:
        """Return the table of weighted sums."""
        factors = weights.to(self.sums.dtype)[self.owners][:, None]
        scaled = self.sums * factors
        if not finite:
            scaled = scaled.where(factors != 0, self.sums.new_zeros(()))
        return self.sums.new_zeros(self.shape).index_add_(0, self.tokens, scaled)

    def square_norms(self) -> Tensor:
        """Return the squared norms from the rows that were looked up."""
        squares = promote(self.sums).square().sum(1)
        return squares.new_zeros(self.classes).index_add_(0, self.owners, squares)

    def gram(self) -> Tensor:
        """Return the Gram matrix over the tokens that were looked up, as many at a time as memory allows."""
        present, slots = torch.unique(self.tokens, return_inverse=True)
        sums = promote(self.sums)
        out = sums.new_zeros(self.classes, self.classes)
        width = max(1, self.memory.left // max(1, 8 * self.classes * self.shape[1]))
        for start in range(0, len(present), width):
            chosen = (slots >= start) & (slots < start + width)
            block = sums.new_zeros(self.classes, min(width, len(present) - start), self.shape[1])
            block.index_put_((self.owners[chosen], slots[chosen] - start), sums[chosen], accumulate=True)
            out += block.flatten(1) @ block.flatten(1).T
        return out


def lookup_term(
    tokens: Tensor,
    values: Tensor,
    owners: Tensor,
    shape: torch.Size,
    padding: int | None,
    layout: ClassLayout,
    memory: Memory,
) -> Term:
    """Return the class gradients of a table whose row ``tokens[r]``, unless it is padding, receives ``values[r]``."""
    if padding is not None:
        used = tokens != padding
        tokens, values, owners = tokens[used], values[used], owners[used]
    classes = len(layout)
    if _small(tokens, values, classes * shape[0], layout, memory):
        table = torch.ops.aten.embedding_dense_backward.default(
            values, owners * shape[0] + tokens, classes * shape[0], -1, False
        )
        return Dense(table.view(classes, *shape), memory)
    return LookupTerm(tokens, values, owners, classes, shape, memory)


def _small(tokens: Tensor, values: Tensor, rows: int, layout: ClassLayout, memory: Memory) -> bool:
    """Whether tables of all classes, of so many rows, are had more cheaply than what the batch looked up is told apart.

    That takes many small operations, which count on a GPU unless they are recorded.
    """
    known = values.dtype in (torch.float32, torch.float64)
    size = rows * values.shape[1]
    many = kind_of(values, layout) == "cuda" and size <= _TABLES
    looked_up = (_GPU_ROWS if many else 1) * len(tokens)
    return known and rows <= looked_up and size * values.element_size() <= memory.left


def embedding_terms(
    call: Call, b: Tensor, layout: ClassLayout, memory: Memory, wanted: frozenset[str]
) -> dict[str, Term]:
    """Every looked-up row receives b."""
    module = cast(nn.Embedding, call.module)
    tokens = call.input
    owners = layout.index.repeat_interleave(tokens[0].numel())
    looked_up = (tokens.reshape(-1).long(), b.reshape(-1, b.shape[-1]), owners)
    return {"weight": lookup_term(*looked_up, module.weight.shape, module.padding_idx, layout, memory)}


def embedding_bag_terms(
    call: Call, b: Tensor, layout: ClassLayout, memory: Memory, wanted: frozenset[str]
) -> dict[str, Term]:
    """Every row of a bag receives the bag's b, divided by its length for means, times its own weight if it has one."""
    module = cast(nn.EmbeddingBag, call.module)
    tokens, factors = call.input, call.argument(2, "per_sample_weights")
    if tokens.dim() == 2:
        bags = torch.arange(len(tokens), device=tokens.device).repeat_interleave(tokens.shape[1])
    else:
        offsets = call.argument(1, "offsets").long()
        starts = offsets[:-1] if module.include_last_offset else offsets
        positions = torch.arange(len(tokens), device=tokens.device)
        bags = torch.searchsorted(starts.contiguous(), positions, right=True) - 1
    tokens = tokens.reshape(-1).long()
    values = b[bags]
    if module.mode == "mean":
        counted = bags if module.padding_idx is None else bags[tokens != module.padding_idx]
        lengths = torch.bincount(counted, minlength=layout.examples).clamp_min(1)
        values = values / lengths[bags][:, None]
    if factors is not None:
        values = values * factors.reshape(-1, 1).to(values.dtype)
    looked_up = (tokens, values, layout.index[bags])
    return {"weight": lookup_term(*looked_up, module.weight.shape, module.padding_idx, layout, memory)}


def _known_options(call: Call, examples: int) -> bool:
    """Dense gradients that are linear in b; the other options fall back."""
    module = cast(nn.Embedding, call.module)
    return not module.scale_grad_by_freq and call.shape[0] == examples


def _known_embedding(call: Call, examples: int) -> bool:
    return _known_options(call, examples) and call.input.dim() >= 1 and call.input.shape[0] == examples


def _known_bag(call: Call, examples: int) -> bool:
    return _known_options(call, examples) and cast(nn.EmbeddingBag, call.module).mode != "max"


def _options(call: Call) -> tuple[object, ...] | None:
    """How many rows are told apart is not known beforehand where padding is left out."""
    return () if cast(nn.Embedding, call.module).padding_idx is None else None


add_rule(nn.Embedding, LayerRule(("weight",), embedding_terms, _known_embedding, options=_options))
add_rule(nn.EmbeddingBag, LayerRule(("weight",), embedding_bag_terms, _known_bag))

"""The terms of a step, with those that lie side by side taken as one and the small ones brought there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from classgrad.gradients._sheet import Block, dense_strides
from classgrad.gradients._terms import LARGE, SMALL, Dense, Memory, Sums, Term, rows


@dataclass(frozen=True)
class Pack:
    """Parameters whose class gradients one term holds, each from a column of its own on."""

    term: Term
    columns: dict[nn.Parameter, int]

    def parts(self, direction: Tensor) -> dict[nn.Parameter, Tensor]:
        """Return the direction of each parameter from that of all of them."""
        if len(self.columns) == 1 and direction.shape == next(iter(self.columns)).shape:
            return dict.fromkeys(self.columns, direction)
        flat = direction.reshape(-1)
        start = flat.storage_offset()
        return {p: flat.as_strided(p.shape, dense_strides(p.shape), start + i) for p, i in self.columns.items()}


Shared = tuple[Block, Memory, dict[nn.Parameter, int]]
"""A block with the columns of those on it."""


def pack(terms: Mapping[nn.Parameter, Term]) -> list[Pack]:
    """Return a pack for each block of a sheet, for the small ones of each kind, and for each other term."""
    blocks: dict[int, Shared] = {}
    small: dict[object, dict[nn.Parameter, Dense | Sums]] = {}
    packs: list[Pack] = []
    for p, term in terms.items():
        if isinstance(term, Dense) and term.block is not None:
            blocks.setdefault(id(term.block), (term.block, term.memory, {}))[2][p] = term.column
        elif isinstance(term, (Dense, Sums)) and not term.held.is_complex():
            alike = (type(term), term.held.dtype, term.held.device)
            joins = term.shape.numel() <= SMALL and term.held.numel() < LARGE
            small.setdefault(alike if joins else p, {})[p] = term
        else:
            packs.append(Pack(term, {p: 0}))
    packs += [joined for group in small.values() if (joined := _join(group, blocks.values())) is not None]
    return [*(Pack(Dense(block.filled, memory), columns) for block, memory, columns in blocks.values()), *packs]


def _join(group: Mapping[nn.Parameter, Dense | Sums], blocks: Iterable[Shared]) -> Pack | None:
    """Put small gradients side by side; those of examples are then summed by class in one operation.

    These go to a block that has room for them, and are no pack of their own then.
    """
    members = list(group.values())
    values = torch.cat([rows(term.held) for term in members], 1) if len(members) > 1 else rows(members[0].held)
    first, starts, width = members[0], _starts(members), values.shape[1]
    if not isinstance(first, Sums):
        return Pack(Dense(values, first.memory), dict(zip(group, starts, strict=True)))
    for block, _, columns in blocks:
        if block.has_room(width, values):
            columns.update({p: block.used + start for p, start in zip(group, starts, strict=True)})
            first.layout.sum_rows(values, block.extend(width))
            return None
    return Pack(Dense(first.layout.sum(values), first.memory), dict(zip(group, starts, strict=True)))


def _starts(terms: Sequence[Term]) -> list[int]:
    starts = [0]
    for term in terms[:-1]:
        starts.append(starts[-1] + term.shape.numel())
    return starts

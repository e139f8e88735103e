"""The terms of a step, with those that lie side by side taken as one and the small ones brought there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from classgrad.gradients._sheet import dense_strides
from classgrad.gradients._terms import SMALL, Dense, Sums, Term, rows


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


def pack(terms: Mapping[nn.Parameter, Term]) -> list[Pack]:
    """Return a pack for each block of a sheet, for the small ones of each kind, and for each other term."""
    packs: dict[object, Pack] = {}
    small: dict[object, dict[nn.Parameter, Dense | Sums]] = {}
    for p, term in terms.items():
        if isinstance(term, Dense) and term.block is not None:
            found = packs.get(id(term.block))
            if found is None:
                found = packs[id(term.block)] = Pack(Dense(term.block.filled, term.memory), {})
            found.columns[p] = term.column
        elif isinstance(term, (Dense, Sums)):
            alike = (type(term), term.held.dtype, term.held.device)
            small.setdefault(alike if term.shape.numel() <= SMALL else p, {})[p] = term
        else:
            packs[p] = Pack(term, {p: 0})
    return [*packs.values(), *(_join(group) for group in small.values())]


def _join(group: Mapping[nn.Parameter, Dense | Sums]) -> Pack:
    """Put small gradients side by side; those of examples are then summed by class in one operation."""
    members = list(group.values())
    values = torch.cat([rows(term.held) for term in members], 1) if len(members) > 1 else rows(members[0].held)
    first = members[0]
    joined = Dense(first.layout.sum(values) if isinstance(first, Sums) else values, first.memory)
    return Pack(joined, dict(zip(group, _starts(members), strict=True)))


def _starts(terms: Sequence[Term]) -> list[int]:
    starts = [0]
    for term in terms[:-1]:
        starts.append(starts[-1] + term.shape.numel())
    return starts

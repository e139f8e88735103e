"""The terms of a step, with those that lie side by side on a sheet taken as one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from classgrad.gradients._terms import Dense, Term


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
        return {p: flat[column : column + p.numel()].view(p.shape) for p, column in self.columns.items()}


def pack(terms: Mapping[nn.Parameter, Term]) -> list[Pack]:
    """Return one pack for each block of a sheet and for each term that is on none."""
    packs: dict[object, Pack] = {}
    for p, term in terms.items():
        block = term.block if isinstance(term, Dense) else None
        if block is None:
            packs[p] = Pack(term, {p: 0})
        elif id(block) in packs:
            packs[id(block)].columns[p] = term.column  # type: ignore[attr-defined]
        else:
            packs[id(block)] = Pack(Dense(block.filled, term.memory), {p: term.column})  # type: ignore[attr-defined]
    return list(packs.values())

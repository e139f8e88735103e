"""The terms of a step, with those that lie side by side taken as one and the small ones brought there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

import torch
from torch import Tensor, nn
from torch._utils import _unflatten_dense_tensors

from classgrad.gradients.terms._sheet import Block, dense_strides
from classgrad.gradients.terms._terms import LARGE, SMALL, Dense, Memory, Sums, Term, rows

Member = tuple[nn.Parameter, int]
"""A parameter with its first column."""


@dataclass(frozen=True)
class Pack:
    """Parameters whose class gradients one term holds, each from a column of its own on."""

    term: Term
    members: list[Member]


def parts(members: Sequence[Member], direction: Tensor) -> Iterable[tuple[nn.Parameter, Tensor]]:
    """Return the direction of each parameter of a pack from that of all of them."""
    first = members[0][0]
    if len(members) == 1 and direction.shape == first.shape:
        return [(first, direction)]
    flat = direction.reshape(-1)
    if _gapless(members):
        parameters = [p for p, _ in members]
        return zip(parameters, _unflatten_dense_tensors(flat, parameters), strict=True)  # type: ignore[no-untyped-call]
    start = flat.storage_offset()
    return [(p, flat.as_strided(p.shape, dense_strides(p.shape), start + column)) for p, column in members]


def _gapless(members: Sequence[Member]) -> bool:
    """Whether the members lie one after the other, so that all are had in one operation."""
    stop = 0
    for p, column in members:
        size = p.numel()
        if column != stop or not size:
            return False
        stop += size
    return True


Shared = tuple[Block, Memory, list[Member]]
"""A block with those on it."""


def pack(terms: Mapping[nn.Parameter, Term]) -> list[Pack]:
    """Return a pack for each block of a sheet, for the small ones of each kind, and for each other term."""
    blocks: dict[int, Shared] = {}
    small: dict[object, list[tuple[nn.Parameter, Dense | Sums]]] = {}
    packs: list[Pack] = []
    for p, term in terms.items():
        if isinstance(term, Dense) and term.block is not None:
            shared = blocks.get(id(term.block))
            if shared is None:
                shared = blocks[id(term.block)] = (term.block, term.memory, [])
            shared[2].append((p, term.column))
        elif isinstance(term, (Dense, Sums)) and not term.held.is_complex():
            alike = (type(term), term.held.dtype, term.held.device)
            joins = term.shape.numel() <= SMALL and term.held.numel() < LARGE
            small.setdefault(alike if joins else p, []).append((p, term))
        else:
            packs.append(Pack(term, [(p, 0)]))
    packs += [joined for group in small.values() if (joined := _join(group, blocks.values())) is not None]
    by_column = itemgetter(1)
    shares = [
        Pack(Dense(block.filled, memory), sorted(on_it, key=by_column)) for block, memory, on_it in blocks.values()
    ]
    return shares + packs


def _join(group: Sequence[tuple[nn.Parameter, Dense | Sums]], blocks: Iterable[Shared]) -> Pack | None:
    """Put small gradients side by side; those of examples are then summed by class in one operation.

    These go to a block that has room for them, and are no pack of their own then.
    """
    members = [term for _, term in group]
    each = [rows(term.held) for term in members]
    first, starts, width = members[0], _starts(members), sum(values.shape[1] for values in each)
    scratch = first.memory.scratch
    values = each[0]
    if len(each) > 1:
        values = torch.cat(each, 1, out=scratch.fresh("joined", (len(values), width), values))
    if not isinstance(first, Sums):
        return Pack(Dense(values, first.memory), _placed(group, starts, 0))
    for block, _, on_it in blocks:
        if block.has_room(width, values):
            on_it += _placed(group, starts, block.used)
            first.layout.sum_rows(values, block.extend(width))
            return None
    sums = scratch.fresh("sums", (first.classes, width), values)
    first.layout.sum_rows(values, sums)
    return Pack(Dense(sums, first.memory), _placed(group, starts, 0))


def _placed(group: Sequence[tuple[nn.Parameter, Term]], starts: Sequence[int], first: int) -> list[Member]:
    return [(p, first + start) for (p, _), start in zip(group, starts, strict=True)]


def _starts(terms: Sequence[Term]) -> list[int]:
    starts = [0]
    for term in terms[:-1]:
        starts.append(starts[-1] + term.shape.numel())
    return starts

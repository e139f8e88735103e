"""Small class gradients side by side, so that many little operations become few."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from classgrad.gradients._terms import Dense, Term, promote, rows

_SMALL = 2**14
"""Elements up to which a parameter is packed: copying it costs less than an operation of its own."""

Packed = dict[tuple[nn.Parameter, ...], Term]


def pack(terms: Mapping[nn.Parameter, Term]) -> Packed:
    """Return the terms with those of small parameters, of the same type and device, joined to one."""
    groups: dict[object, list[nn.Parameter]] = {}
    for p, term in terms.items():
        kept = term.kept
        small = isinstance(term, Dense) and term.shape.numel() <= _SMALL
        groups.setdefault((promote(kept[:0]).dtype, kept.device) if small and kept is not None else p, []).append(p)
    return {tuple(group): terms[group[0]] if len(group) == 1 else _join(group, terms) for group in groups.values()}


def _join(group: list[nn.Parameter], terms: Mapping[nn.Parameter, Term]) -> Term:
    kept = [terms[p].kept for p in group]
    return Dense(torch.cat([rows(k) for k in kept if k is not None], 1), terms[group[0]].memory)


def unpack(directions: Mapping[tuple[nn.Parameter, ...], Tensor]) -> dict[nn.Parameter, Tensor]:
    """Return the direction of each parameter."""
    out = {}
    for group, direction in directions.items():
        parts = [direction] if len(group) == 1 else torch.split(direction, [p.numel() for p in group])
        out.update({p: part.view(p.shape) for p, part in zip(group, parts, strict=True)})
    return out

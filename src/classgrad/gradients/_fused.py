"""The fast engine: one forward, one backward, class gradients from what the layers saw."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from classgrad.gradients._audit import Calls, CoveredCall, uses_of
from classgrad.gradients._joint import gradients_of, joint_terms
from classgrad.gradients._layout import ClassLayout
from classgrad.gradients._sheet import Sheet, aligned
from classgrad.gradients._taps import listen
from classgrad.gradients._terms import Memory, Term, Total
from classgrad.gradients.layers._linear import RowsTerm


def fused_terms(
    losses: Tensor,
    layout: ClassLayout,
    calls: Calls,
    ends: Calls,
    parameters: Sequence[nn.Parameter],
    rest: frozenset[int],
    seed: Tensor | float,
    memory: Memory,
    gram: bool = False,
    keep_graph: bool = False,
) -> dict[nn.Parameter, Term]:
    """Return ``seed`` times the class gradients of every parameter the losses reach.

    Parameters of layers with a rule come from the one backward pass, which goes as far as ``ends``; each layer's output
    gradient is made use of as it comes and let go. Parameters whose ids are in ``rest`` get a backward pass per class,
    for themselves alone.
    """
    uncovered = [p for p in parameters if id(p) in rest]
    sheet = Sheet(len(layout), sum(aligned(p.numel()) for p in parameters))
    others = joint_terms(losses, layout, uncovered, seed, memory, keep_graph=True) if uncovered else {}
    wanted = {id(p) for p in parameters if id(p) not in rest}
    uses = uses_of(calls)
    all_wanted = wanted.issuperset(uses)
    parts: dict[int, list[Term]] = {}  # by the parameter's id: that of a tensor itself takes a while to look up

    def take(each: CoveredCall, b: Tensor, through: bool) -> Tensor | None:
        call, rule = each.call, each.rule
        covered = each.parameters
        if not all_wanted:
            covered = {name: p for name, p in covered.items() if id(p) in wanted}
        passed = None
        if through and rule.through is not None:
            passed, found = rule.through(call, b, layout, memory)
        else:
            found = rule.terms(call, b, layout, memory, frozenset(covered)) if covered else {}
        for name, p in covered.items():
            # that of a parameter which comes up again is put together when all of it is there
            once = uses[id(p)] == 1
            parts.setdefault(id(p), []).append(found[name].settle(sheet, b, gram) if once else found[name])
        if not keep_graph:
            call.release()
        return passed

    seeds = torch.ones_like(losses) * seed if isinstance(seed, Tensor) else torch.full_like(losses, seed)
    for each in calls:
        each.call.sink = partial(take, each)
    handles = [listen(each.edge.node, each.call) for each in calls]
    try:
        last = gradients_of(losses, [each.edge for each in ends], seeds, keep_graph)
        for each, b in zip(ends, last, strict=True):  # autograd stops in front of where it is told to go
            if b is not None:
                take(each, b.reshape(each.call.shape), False)
    finally:
        for each, handle in zip(calls, handles, strict=True):
            each.call.sink = None
            if handle is not None:
                handle.remove()
    return {
        p: _merge(parts[id(p)]) if id(p) in parts else others[p]
        for p in parameters
        if id(p) in parts or (others and p in others)
    }


def _merge(terms: list[Term]) -> Term:
    """Return one term for a parameter used several times; rows of the same kind are simply more rows."""
    if len(terms) == 1:
        return terms[0]
    same = [term for term in terms if isinstance(term, RowsTerm)]
    if len(same) == len(terms):
        a, b = torch.cat([t.a for t in same], 1), torch.cat([t.b for t in same], 1)
        return RowsTerm(a, b, same[0].layout, same[0].shape, same[0].memory)
    return Total(terms)

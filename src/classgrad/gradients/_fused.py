"""The fast engine: one forward, one backward, class gradients from what the layers saw."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from classgrad.gradients._audit import Calls, covered_parameters
from classgrad.gradients._capture import Call
from classgrad.gradients._joint import gradients_of, joint_terms
from classgrad.gradients._layout import ClassLayout
from classgrad.gradients._registry import rule_of
from classgrad.gradients._sheet import Sheet
from classgrad.gradients._terms import Memory, Sums, Term, Total, sum_together
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
    sheet = Sheet(len(layout), sum(p.numel() for p in parameters))
    terms = joint_terms(losses, layout, uncovered, seed, memory, keep_graph=True) if uncovered else {}
    wanted = {id(p): p for p in parameters if id(p) not in rest}
    uses = Counter(id(p) for _, call in calls for p in covered_parameters(call).values())
    parts: dict[nn.Parameter, list[Term]] = {}

    def sink(call: Call) -> Callable[[Tensor], None]:
        def take(b: Tensor) -> None:
            rule = rule_of(call.module)
            covered = {name: p for name, p in covered_parameters(call).items() if id(p) in wanted}
            if rule is None or not covered:
                return
            for name, term in rule.terms(call, b, layout, memory, frozenset(covered)).items():
                p = covered[name]
                # that of a parameter which comes up again is put together when all of it is there
                parts.setdefault(p, []).append(term.settle(sheet, b, gram) if uses[id(p)] == 1 else term)
            if not keep_graph:
                call.release()

        return take

    for _, call in calls:
        call.sink = sink(call)
    try:
        last = gradients_of(losses, [edge for edge, _ in ends], torch.ones_like(losses) * seed, keep_graph)
        for (_, call), b in zip(ends, last, strict=True):  # autograd stops in front of where it is told to go
            if call.sink is not None and b is not None:
                call.sink(b)
    finally:
        for _, call in calls:
            call.sink = None
    terms.update({p: _merge(same) for p, same in parts.items()})
    return _summed({p: terms[p] for p in parameters if p in terms})


def _merge(terms: list[Term]) -> Term:
    """Return one term for a parameter used several times; rows of the same kind are simply more rows."""
    if len(terms) == 1:
        return terms[0]
    same = [term for term in terms if isinstance(term, RowsTerm)]
    if len(same) == len(terms):
        a, b = torch.cat([t.a for t in same], 1), torch.cat([t.b for t in same], 1)
        return RowsTerm(a, b, same[0].layout, same[0].shape, same[0].memory)
    return Total(terms)


def _summed(terms: dict[nn.Parameter, Term]) -> dict[nn.Parameter, Term]:
    """Return the terms with the small gradients by example summed by class, all of one type together."""
    groups: dict[torch.dtype, dict[nn.Parameter, Sums]] = {}
    for p, term in terms.items():
        if isinstance(term, Sums):
            groups.setdefault(term.dtype, {})[p] = term
    for group in groups.values():
        terms.update(zip(group, sum_together(list(group.values())), strict=True))
    return terms

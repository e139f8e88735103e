"""The fast engine: one forward, one backward, class gradients from what the layers saw."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from classgrad.gradients._audit import covered_parameters
from classgrad.gradients._capture import Call
from classgrad.gradients._joint import gradients_of, joint_terms
from classgrad.gradients._layout import ClassLayout
from classgrad.gradients._registry import rule_of
from classgrad.gradients._terms import Memory, Term, Total
from classgrad.gradients.layers._linear import RowsTerm


def fused_terms(
    losses: Tensor,
    layout: ClassLayout,
    calls: Sequence[tuple[GradientEdge, Call]],
    parameters: Sequence[nn.Parameter],
    rest: frozenset[int],
    seed: Tensor | float,
    memory: Memory,
    keep_graph: bool = False,
) -> dict[nn.Parameter, Term]:
    """Return ``seed`` times the class gradients of every parameter the losses reach.

    Parameters of layers with a rule come from the one backward pass; those whose ids are in ``rest`` get a backward
    pass per class, for themselves alone.
    """
    uncovered = [p for p in parameters if id(p) in rest]
    terms = joint_terms(losses, layout, uncovered, seed, memory, keep_graph=True) if uncovered else {}
    ids = {id(p) for p in parameters} - rest
    wanted = [frozenset(name for name, p in covered_parameters(call).items() if id(p) in ids) for _, call in calls]
    chosen = [(edge, call, names_) for (edge, call), names_ in zip(calls, wanted, strict=True) if names_]
    seeds = torch.ones_like(losses) * seed
    gradients = gradients_of(losses, [edge for edge, _, _ in chosen], seeds, keep_graph)
    parts: dict[nn.Parameter, list[Term]] = {}
    for (_, call, names_), b in zip(chosen, gradients, strict=True):
        rule = rule_of(call.module)
        if b is None or rule is None:
            continue
        for name, term in rule.terms(call, b, layout, memory, names_).items():
            parts.setdefault(covered_parameters(call)[name], []).append(term)
    terms.update({p: _merge(same) for p, same in parts.items()})
    return {p: terms[p] for p in parameters if p in terms}


def _merge(terms: list[Term]) -> Term:
    """Return one term for a parameter used several times; rows of the same kind are simply more rows."""
    if len(terms) == 1:
        return terms[0]
    same = [term for term in terms if isinstance(term, RowsTerm)]
    if len(same) == len(terms):
        a, b = torch.cat([t.a for t in same], 1), torch.cat([t.b for t in same], 1)
        return RowsTerm(a, b, same[0].layout, same[0].shape, same[0].memory)
    return Total(terms)

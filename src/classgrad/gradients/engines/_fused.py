"""The fast engine: one forward, one backward, class gradients from what the layers saw."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from classgrad.gradients._layout import ClassLayout
from classgrad.gradients.engines._audit import Calls, CoveredCall, uses_of
from classgrad.gradients.engines._joint import gradients_of, joint_terms
from classgrad.gradients.engines._spread import Place, spread_terms
from classgrad.gradients.layers._linear import RowsTerm
from classgrad.gradients.layers._taps import Call, listen
from classgrad.gradients.terms._sheet import Sheet, aligned
from classgrad.gradients.terms._terms import Memory, Term, Total

Take = Callable[[CoveredCall, Tensor, bool], Tensor | None]
"""What is done with a layer's output gradient; returns the input's gradient if asked for and able to."""


class Rest(NamedTuple):
    """The parameters that no rule covers, or not all of whose uses."""

    ids: frozenset[int]
    places: Sequence[Place] = ()
    """By which they come to the examples, if that is known: then one backward pass does for all classes."""


class Taker:
    """Makes class gradients of the layers' output gradients as they come, and lets go of what the layers saw.

    ``calls`` are those of a graph, ``parameters`` those whose class gradients are wanted.
    """

    def __init__(
        self,
        calls: Calls,
        parameters: Sequence[nn.Parameter],
        layout: ClassLayout,
        memory: Memory,
        gram: bool = False,
        keep_graph: bool = False,
    ) -> None:
        self.layout = layout
        self.memory = memory
        self.sheet = Sheet(len(layout), sum(aligned(p.numel()) for p in parameters))
        """Where class gradients are made."""
        self.uses = uses_of(calls)
        wanted = {id(p) for p in parameters}
        self.wanted = None if wanted.issuperset(self.uses) else wanted
        """Ids of the parameters whose class gradients are wanted, None if those of all are."""
        self._gram = gram
        self._keep_graph = keep_graph
        self._parts: dict[int, list[Term]] = {}  # by the parameter's id: that of a tensor itself takes a while

    def __call__(self, each: CoveredCall, b: Tensor, through: bool) -> Tensor | None:
        """Take an output gradient."""
        passed, found = self.find(each, b, through)
        self.add(each, found, b)
        if not self._keep_graph:
            each.call.release()
        return passed

    def find(
        self, each: CoveredCall, b: Tensor, through: bool, out: Tensor | None = None
    ) -> tuple[Tensor | None, dict[str, Term]]:
        """Return the input's gradient, written to ``out`` if given, and a term for each wanted parameter."""
        if through and each.rule.through is not None:
            return each.rule.through(each.call, b, self.layout, self.memory, out)
        wanted = frozenset(self._covered(each))
        return None, each.rule.terms(each.call, b, self.layout, self.memory, wanted) if wanted else {}

    def add(self, each: CoveredCall, found: dict[str, Term], b: Tensor) -> None:
        """Note the terms of a call."""
        for name, p in self._covered(each).items():
            # that of a parameter which comes up again is put together when all of it is there
            once = self.uses[id(p)] == 1
            self._parts.setdefault(id(p), []).append(self.settle(found[name], b) if once else found[name])

    def settle(self, term: Term, b: Tensor) -> Term:
        """Return class gradients on the sheet where that is their place."""
        return term.settle(self.sheet, b, self._gram)

    def terms(self, parameters: Iterable[nn.Parameter]) -> dict[nn.Parameter, Term]:
        """Hand out what was made of those of the parameters that learn from a call, to whoever lets go of it first."""
        return {p: _merge(self._parts.pop(id(p))) for p in parameters if id(p) in self._parts}

    def _covered(self, each: CoveredCall) -> dict[str, nn.Parameter]:
        if self.wanted is None:
            return each.parameters
        return {name: p for name, p in each.parameters.items() if id(p) in self.wanted}


def fused_terms(
    losses: Tensor,
    layout: ClassLayout,
    calls: Calls,
    ends: Calls,
    parameters: Sequence[nn.Parameter],
    rest: Rest,
    seed: Tensor | float,
    memory: Memory,
    gram: bool = False,
    keep_graph: bool = False,
) -> dict[nn.Parameter, Term]:
    """Return ``seed`` times the class gradients of every parameter the losses reach.

    Parameters of layers with a rule come from the one backward pass, which goes as far as ``ends``; each layer's output
    gradient is made use of as it comes and let go. The ``rest`` get backward passes for themselves alone.
    """
    others = other_terms(losses, layout, parameters, rest, seed, memory)
    taker = Taker(calls, [p for p in parameters if id(p) not in rest.ids], layout, memory, gram, keep_graph)
    send_back(losses, calls, ends, seed, taker, keep_graph)
    found = taker.terms(parameters) | others
    return {p: found[p] for p in parameters if p in found} if others else found


def other_terms(
    losses: Tensor,
    layout: ClassLayout,
    parameters: Sequence[nn.Parameter],
    rest: Rest,
    seed: Tensor | float,
    memory: Memory,
) -> dict[nn.Parameter, Term]:
    """Return the class gradients of the ``rest`` of the parameters; the graph can be used once more."""
    uncovered = [p for p in parameters if id(p) in rest.ids]
    if not uncovered:
        return {}
    if rest.places:
        return spread_terms(losses, layout, uncovered, rest.places, seed, memory)
    return joint_terms(losses, layout, uncovered, seed, memory, keep_graph=True)


def send_back(
    losses: Tensor, calls: Calls, ends: Calls, seed: Tensor | float, take: Take, keep_graph: bool = False
) -> None:
    """Make one backward pass that goes as far as ``ends`` and have the output gradients of the calls taken."""
    seeds = torch.ones_like(losses) * seed if isinstance(seed, Tensor) else torch.full_like(losses, seed)
    by_call = {each.call: each for each in calls}

    def sink(call: Call, b: Tensor, through: bool) -> Tensor | None:
        return take(by_call[call], b, through)

    for call in by_call:
        call.sink = sink
    handles = [listen(each.node, each.call) for each in calls]
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


def _merge(terms: list[Term]) -> Term:
    """Return one term for a parameter used several times; rows of the same kind are simply more rows."""
    if len(terms) == 1:
        return terms[0]
    same = [term for term in terms if isinstance(term, RowsTerm)]
    if len(same) == len(terms):
        a, b = torch.cat([t.a for t in same], 1), torch.cat([t.b for t in same], 1)
        return RowsTerm(a, b, same[0].layout, same[0].shape, same[0].memory)
    return Total(terms)

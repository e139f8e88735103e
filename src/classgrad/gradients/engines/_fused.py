"""The fast engine: one forward, one backward, class gradients from what the layers saw."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from classgrad.gradients._layout import ClassLayout
from classgrad.gradients.engines._audit import Calls, CoveredCall, uses_of
from classgrad.gradients.engines._below import Below
from classgrad.gradients.engines._joint import gradients_of, joint_terms
from classgrad.gradients.engines._places import Place, Places
from classgrad.gradients.layers._linear import RowsTerm
from classgrad.gradients.layers._taps import Call, listen
from classgrad.gradients.terms._sheet import Sheet, aligned
from classgrad.gradients.terms._terms import Memory, Term, Total


@dataclass(frozen=True)
class Plan:
    """What the fused engine may do on a graph."""

    calls: Calls
    """The layer calls that a rule applies to."""
    covered: Sequence[nn.Parameter]
    """The parameters that these tell all of."""
    places: Places
    """Where others come to the examples."""
    rest: Sequence[nn.Parameter]
    """Those that need backward passes for themselves alone."""
    ends: Sequence[CoveredCall | Place]
    """How far a backward pass has to go to come by all calls and places."""

    @property
    def held(self) -> int:
        """Bytes that class gradients which must all be held take for each class."""
        return self.places.held + sum(p.numel() * p.element_size() for p in self.rest)


class Taker:
    """Makes class gradients of output gradients as they come, and lets go of what layers and other operations saw."""

    def __init__(
        self, plan: Plan, layout: ClassLayout, memory: Memory, gram: bool = False, keep_graph: bool = False
    ) -> None:
        self.layout = layout
        self.memory = memory
        entering = plan.places.parameters
        self.sheet = Sheet(len(layout), sum(aligned(p.numel()) for p in {*plan.covered, *entering}))
        """Where class gradients are made."""
        self.uses = uses_of(plan.calls)
        wanted = {id(p) for p in plan.covered}
        self.wanted = None if wanted.issuperset(self.uses) else wanted
        """Ids of the parameters whose class gradients are wanted of the calls, None if those of all are."""
        self._entries = Counter(map(id, (*entering, *plan.places.below)))
        self._below = Below(plan.places, layout, memory)
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

    def enter(self, place: Place, b: Tensor) -> None:
        """Take what comes to a place."""
        b = b.to_dense()
        term = place.term(b, self.layout, self.memory)
        if not self._keep_graph:
            place.use.release()
        p = place.parameter
        if p is None:
            self._below.add(place, term)
        else:
            self._parts.setdefault(id(p), []).append(self.settle(term, b) if self._entries[id(p)] == 1 else term)

    def settle(self, term: Term, b: Tensor) -> Term:
        """Return class gradients on the sheet where that is their place."""
        return term.settle(self.sheet, b, self._gram)

    def terms(self, parameters: Iterable[nn.Parameter]) -> dict[nn.Parameter, Term]:
        """Hand out what was made of those of the parameters that anything came of, to whoever lets go of it first."""
        for p, term in self._below.terms().items():
            self._parts.setdefault(id(p), []).append(term)
        return {p: _merge(self._parts.pop(id(p))) for p in parameters if id(p) in self._parts}

    def _covered(self, each: CoveredCall) -> dict[str, nn.Parameter]:
        if self.wanted is None:
            return each.parameters
        return {name: p for name, p in each.parameters.items() if id(p) in self.wanted}


def fused_terms(
    losses: Tensor,
    layout: ClassLayout,
    plan: Plan,
    parameters: Sequence[nn.Parameter],
    seed: Tensor | float,
    memory: Memory,
    gram: bool = False,
    keep_graph: bool = False,
) -> dict[nn.Parameter, Term]:
    """Return ``seed`` times the class gradients of every parameter the losses reach.

    They come from one backward pass, which goes as far as the plan's ends; each output gradient is made use of as it
    comes and let go. The ``rest`` get backward passes for themselves alone.
    """
    others = other_terms(losses, layout, plan, seed, memory)
    taker = Taker(plan, layout, memory, gram, keep_graph)
    send_back(losses, plan, seed, taker, keep_graph)
    found = taker.terms(parameters) | others
    return {p: found[p] for p in parameters if p in found} if others else found


def other_terms(
    losses: Tensor, layout: ClassLayout, plan: Plan, seed: Tensor | float, memory: Memory
) -> dict[nn.Parameter, Term]:
    """Return the class gradients of the ``rest`` of the parameters; the graph can be used once more."""
    return joint_terms(losses, layout, plan.rest, seed, memory, keep_graph=True) if plan.rest else {}


def send_back(losses: Tensor, plan: Plan, seed: Tensor | float, taker: Taker, keep_graph: bool = False) -> None:
    """Make one backward pass that goes as far as the plan's ends and have all that comes taken."""
    seeds = torch.ones_like(losses) * seed if isinstance(seed, Tensor) else torch.full_like(losses, seed)
    by_call = {each.call: each for each in plan.calls}

    def sink(call: Call, b: Tensor, through: bool) -> Tensor | None:
        return taker(by_call[call], b, through)

    def enter(place: Place, gradients: tuple[Tensor | None, ...]) -> None:
        if gradients[0] is not None:
            taker.enter(place, gradients[0])

    for call in by_call:
        call.sink = sink
    handles = [listen(each.node, each.call) for each in plan.calls]
    handles += [place.node.register_prehook(partial(enter, place)) for place in plan.places.each]
    try:
        edges = [each.edge for each in plan.ends]
        last = gradients_of(losses, edges, seeds, keep_graph or plan.places.tangled)
        for each, b in zip(plan.ends, last, strict=True):  # autograd stops in front of where it is told to go
            if b is None:
                continue
            if isinstance(each, Place):
                taker.enter(each, b)
            else:
                taker(each, b.reshape(each.call.shape), False)
    finally:
        for call in by_call:
            call.sink = None
        for handle in handles:
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

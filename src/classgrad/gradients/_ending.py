"""The end of a step, from class gradients to their norms, the rule's weights and the direction, as a recording."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import fields

import torch
from torch import Tensor

from classgrad.gradients._combine import Found, class_losses, judge
from classgrad.gradients._layout import ClassLayout
from classgrad.gradients._pack import Member, pack
from classgrad.gradients._recorder import Recorder, is_small
from classgrad.gradients._replayed_calls import Hit
from classgrad.gradients._sheet import Block
from classgrad.gradients._step import Step
from classgrad.gradients._terms import Memory
from classgrad.gradients.layers._linear import ExamplesTerm
from classgrad.rules import Rule


class Ending:
    """What is launched when all output gradients have come, for calls that were replayed.

    ``given`` are the squared norms of what is none of them, which is weighed by the weights that come back; ``outs``
    are where the direction goes, a tensor for each pack. What else a replay writes is copied before anybody sees it.
    """

    def __init__(self, given: Sequence[Tensor], losses: Tensor, layout: ClassLayout) -> None:
        self._given = torch.stack(list(given)) if given else None
        self._losses = losses.detach().clone()
        self._layout = layout.renewed()
        self._replay: Callable[[], None]

    def record(
        self, recorder: Recorder, hits: Sequence[Hit], memory: Memory, rule: Rule, outs: Sequence[Tensor]
    ) -> bool:
        """Record it; say whether that could be done."""
        # Directions are the user's from then on: small ones are written elsewhere and copied.
        self._own = [torch.empty_like(out) if is_small(out) else None for out in outs]
        places = [out if own is None else own for own, out in zip(self._own, outs, strict=True)]
        recorded = recorder.record(lambda: self._work(hits, copy.copy(memory), rule, places))
        if recorded is None:
            return False
        self._replay, self._members = recorded
        return True

    def _work(self, hits: Sequence[Hit], memory: Memory, rule: Rule, outs: Sequence[Tensor]) -> list[list[Member]]:
        blocks: dict[int, Block] = {}

        def twin(block: Block) -> Block:
            """Return a block that can be filled up by itself."""
            return blocks.setdefault(id(block), Block(block.rows, block.used))

        layout = self._layout
        terms = {p: term for hit in hits for p, term in hit.static_terms(layout, memory, twin)}
        # The most that is needed at a time is asked for first: what is given back of it serves for all the rest.
        most = max([term.working_bytes for term in terms.values() if isinstance(term, ExamplesTerm)], default=0)
        self._losses.new_empty(most, dtype=torch.uint8)
        packs = pack(terms)
        terms.clear()
        given = [] if self._given is None else self._given.unbind()
        squares = [*[each.term.square_norms() for each in packs], *given]
        step = judge(total(squares), rule, class_losses(self._losses, layout), layout)
        members = [each.members for each in packs]
        for out in outs:
            packs.pop(0).term.weigh_into(step.weights, out)
        values = {f.name: value for f in fields(step) if (value := getattr(step, f.name)) is not None}
        names = sorted(values, key=lambda name: -values[name].element_size())  # each starts at a multiple of its size
        pieces = [values[name].view(torch.uint8) for name in names]
        self._fields = [(name, values[name].dtype) for name in names]
        self._sizes = [len(piece) for piece in pieces]
        self._record = torch.cat(pieces)
        return members

    def replay(self, given: Sequence[Tensor], losses: Tensor, outs: Sequence[Tensor]) -> tuple[Step, Found]:
        """Launch it; return the step and the direction of the calls' parameters."""
        if self._given is not None:
            torch.stack(list(given), out=self._given)
        self._losses.copy_(losses.detach())
        self._replay()
        pieces = torch.split(self._record.clone(), self._sizes)
        values = {name: piece.view(dtype) for (name, dtype), piece in zip(self._fields, pieces, strict=True)}
        found = [out if own is None else own.clone() for own, out in zip(self._own, outs, strict=True)]
        return Step(**values), list(zip(self._members, found, strict=True))


def total(squares: Sequence[Tensor]) -> Tensor:
    """Return the squared norms over all packs, of the one scope there is."""
    return squares[0][None] if len(squares) == 1 else torch.stack(list(squares)).sum(0, keepdim=True)

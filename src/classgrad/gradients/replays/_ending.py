"""The end of a step, from class gradients to their norms, the rule's weights and the direction, as a recording."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from classgrad.gradients._combine import Found, class_losses, judge
from classgrad.gradients._layout import ClassLayout
from classgrad.gradients._step import Step, values_of
from classgrad.gradients.replays._outcomes import Outcome, tensors_behind
from classgrad.gradients.replays._packed import Packed
from classgrad.gradients.replays._recorder import Recorder, Static, Written, base
from classgrad.gradients.terms._pack import Member, pack
from classgrad.gradients.terms._scratch import Area
from classgrad.gradients.terms._sheet import Block
from classgrad.gradients.terms._terms import Dense, Memory, Term
from classgrad.rules import Rule


class _Spot(NamedTuple):
    """Where in a step's memory one of its small inputs is read."""

    number: int
    dtype: torch.dtype
    shape: torch.Size
    strides: tuple[int, ...]
    start: int

    @classmethod
    def of(cls, number: int, values: Tensor) -> _Spot:
        return cls(number, values.dtype, values.shape, values.stride(), int(values.storage_offset()))


class Ending:
    """What is launched when all output gradients have come.

    ``outcomes`` are those of the calls. ``given`` are the squared norms of what is none of them, which is weighed by
    the weights that come back, and so is what follows from examples: ordinary weight gradients. ``outs`` are where the
    direction of class gradients that were made goes, a tensor for each pack. What else a replay writes is copied before
    anybody sees it.
    """

    def __init__(self, given: Sequence[Tensor], losses: Tensor, layout: ClassLayout) -> None:
        self._given = torch.stack(list(given)) if given else None
        self._losses = losses.detach().clone()
        self._layout = layout.renewed()
        self._replay: Callable[[], None]

    def record(
        self,
        recorder: Recorder,
        outcomes: Sequence[Outcome],
        memory: Memory,
        rule: Rule,
        outs: Sequence[Tensor],
        area: Area,
    ) -> bool:
        """Record it, working in an area; say whether that could be done."""
        self._written = Written(outs)
        places = self._written.places(outs)
        tensors = tensors_behind(outcomes)
        inputs = Static.of(tensors, lambda _, like: area.fresh_like("input", like))
        if not area.complete:
            return False
        # Only where they are: the memory is the step's.
        self._inputs = [_Spot.of(number, v) for number, v in zip(inputs.numbers, inputs.held, strict=True)]
        memory = copy.copy(memory)
        memory.scratch = area
        recorded = recorder.record(lambda: self._work(outcomes, inputs.stand_ins(tensors), memory, rule, places))
        if recorded is None:
            return False
        self._replay, self._members = recorded
        return True

    def _work(
        self, outcomes: Sequence[Outcome], tensors: Sequence[Tensor], memory: Memory, rule: Rule, outs: Sequence[Tensor]
    ) -> list[list[Member]]:
        blocks: dict[int, Block] = {}

        def twin(block: Block) -> Block:
            """Return a block that can be filled up by itself."""
            return blocks.setdefault(id(block), Block(block.rows, block.used))

        layout = self._layout
        terms: dict[nn.Parameter, Term] = {}
        first = 0
        for outcome in outcomes:
            count = len(outcome.tensors)
            terms.update(outcome.terms(layout, memory, tensors[first : first + count], twin))
            first += count
        packs = pack(terms)
        terms.clear()
        given = [] if self._given is None else self._given.unbind()
        squares = [*[each.term.square_norms() for each in packs], *given]
        step = judge(total(squares), rule, class_losses(self._losses, layout), layout)
        made = [each for each in packs if isinstance(each.term, Dense)]
        for each, out in zip(made, outs, strict=True):
            each.term.weigh_into(step.weights, out)
        self._record = Packed(values_of(step))
        return [each.members for each in made]

    def replay(
        self,
        given: Sequence[Tensor],
        losses: Tensor,
        outcomes: Sequence[Outcome],
        outs: Sequence[Tensor],
        work: Tensor | None,
    ) -> tuple[Step, Found]:
        """Launch it; return the step and the direction of class gradients that were made."""
        if self._given is not None:
            torch.stack(list(given), out=self._given)
        self._losses.copy_(losses.detach())
        if self._inputs:
            assert work is not None
            tensors, typed = tensors_behind(outcomes), {spot.dtype: work.view(spot.dtype) for spot in self._inputs}
            places = [typed[spot.dtype].as_strided(spot.shape, spot.strides, spot.start) for spot in self._inputs]
            torch._foreach_copy_(places, [base(tensors[spot.number]) for spot in self._inputs])
        self._replay()
        return Step(**self._record.copies()), list(zip(self._members, self._written.found(outs), strict=True))


def total(squares: Sequence[Tensor]) -> Tensor:
    """Return the squared norms over all packs, of the one scope there is."""
    return squares[0][None] if len(squares) == 1 else torch.stack(list(squares)).sum(0, keepdim=True)

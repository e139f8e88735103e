"""Steps on a GPU whose own operations are replayed, where they come again, rather than launched one by one.

The forward and backward pass are the user's and run as always, hooks and all. What a step adds, at every layer and at
its end, are many small operations that take the host longer to launch than the device to run. They are none of the
user's code; they are recorded in pieces as CUDA graphs, which the host launches in one call each.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from classgrad.gradients._combine import Found, Wishes, class_losses, handed_out, judge, weigh_packs
from classgrad.gradients._layout import ClassLayout
from classgrad.gradients._step import Step
from classgrad.gradients.engines._fused import Plan, other_terms, send_back
from classgrad.gradients.replays._ending import Ending, total
from classgrad.gradients.replays._outcomes import Launched, Locate, Outcome
from classgrad.gradients.replays._packed import Values
from classgrad.gradients.replays._recorder import Recorder, Shelf, Tally
from classgrad.gradients.replays._replayed_calls import Piece, Replaying
from classgrad.gradients.replays._small import Small, Work
from classgrad.gradients.replays._weighing import Weighing
from classgrad.gradients.terms._pack import Pack, pack
from classgrad.gradients.terms._scratch import Area, Needs, is_small
from classgrad.gradients.terms._terms import Dense, Memory, Term, promote
from classgrad.rules import Normalize, Prefer, Rule, Sum

_MAKE_UPS = 8
"""Make-ups of batches whose recordings are kept."""
_WORKS = 8
"""Recordings of work on small tensors that are kept for a make-up."""
_DIRECTIONS = 2**26
"""Bytes of the direction that are made at once: more come one by one, as the class gradients behind them are let go."""


class Replays:
    """Makes steps, and records and replays what it can of them; nothing unless told to ``record``."""

    def __init__(self, record: bool = True) -> None:
        self._record = record
        self._recorder = Recorder(record)
        self._make_ups: Shelf[MakeUp] = Shelf(kept=_MAKE_UPS)

    def __reduce__(self) -> tuple[type[Replays], tuple[bool]]:
        """Have copies record their own."""
        return Replays, (self._record,)

    @property
    def tally(self) -> Tally:
        """What became of the pieces of its steps."""
        return replace(self._recorder.tally)

    def suit(self, losses: Tensor, layout: ClassLayout, rule: Rule, wishes: Wishes, scale: Tensor | float) -> bool:
        """Say whether a step asks for norms alone, never waits for the device and runs no code of the user's."""
        return (
            self._recorder.knows(losses)
            and not wishes.gram
            and "error" not in (wishes.on_missing, wishes.on_nonfinite)
            and isinstance(scale, float)
            and rule.per == "model"
            and _is_pure(rule)
            and not layout.recorded  # a whole step is
        )

    def step(
        self,
        losses: Tensor,
        layout: ClassLayout,
        plan: Plan,
        parameters: Sequence[nn.Parameter],
        memory: Memory,
        rule: Rule,
    ) -> tuple[Step, dict[nn.Parameter, Tensor]]:
        """Return the step that the rule makes of the class gradients, and its direction."""
        make_up = self.make_up(losses, layout, memory)
        seed = 1 / layout.examples
        others = other_terms(losses, layout, plan, seed, memory)
        known = (None, layout) if make_up is None else (make_up.pieces, make_up.layout)
        taker = Replaying(plan, layout, memory, self._recorder, *known)
        send_back(losses, plan, seed, taker)
        outcomes, outside = taker.outcomes, pack(others | taker.terms(parameters))
        del taker, others  # what the class gradients are held in is let go as the direction comes
        given = [each.term.square_norms() for each in outside]
        ends = None
        if make_up is not None:
            key = (repr(rule), memory.left, losses.shape, losses.dtype, *[v.dtype for v in given])
            ends = make_up.ends(outcomes, key, self._recorder.place)
        made = None if ends is None else self._replayed(ends, outcomes, given, losses, memory, rule)
        if made is not None:
            self._recorder.tally.replayed += 1
        else:
            self._recorder.tally.launched += 1
            made = _launched(outcomes, given, losses, layout, memory, rule, ends)
        step, found = made
        outside += _not_made(outcomes, layout, memory, {id(p) for members, _ in found for p, _ in members})
        outcomes.clear()
        return step, handed_out(found + weigh_packs(outside, [step.weights] * len(outside), finite=False))

    def small(
        self, make_up: MakeUp | None, key: Hashable, work: Work, layout: ClassLayout, inputs: Sequence[Tensor]
    ) -> tuple[Values, Small | None]:
        """Do work on small tensors; return the recording too if it was replayed, until whose next replay they are good.

        ``key`` is what decides about the work beside the make-up of the batch and how the inputs lie.
        """
        found = None
        if make_up is not None and all(map(is_small, inputs)):
            key = (key, *[(values.shape, values.stride(), values.dtype) for values in inputs])
            found = make_up.works.get(key)
            if found is None and make_up.works.due(key):
                found = Small(work, make_up.layout, inputs)
                if found.record(self._recorder, work, make_up.layout, inputs):
                    make_up.works.put(key, found)
                else:
                    make_up.works.close()
                    found = None
        if found is None:
            self._recorder.tally.launched += 1
            return work(layout, *inputs), None
        self._recorder.tally.replayed += 1
        found.replay(inputs)
        return found.made.values, found

    def _replayed(
        self,
        known: _Ends,
        outcomes: list[Outcome],
        given: Sequence[Tensor],
        losses: Tensor,
        memory: Memory,
        rule: Rule,
    ) -> tuple[Step, Found] | None:
        """Replay the end of a step, recorded now if need be; None if it is to be launched one by one."""
        if known.directions is None or not self._recorder.ready(losses):
            return None
        outs = [losses.new_empty(shape, dtype=dtype) for shape, dtype in known.directions]
        work = known.needs.memory(losses)
        places = self._places(outs, work)
        ending = known.shelf.get(places)
        if ending is None:
            if not known.shelf.open:
                return None
            ending, area = Ending(given, losses, known.layout), Area(known.needs, work)
            if not ending.record(self._recorder, outcomes, memory, rule, outs, area):
                if area.complete:
                    known.shelf.close()
                return None
            known.shelf.put(places, ending)
        step, found = ending.replay(given, losses, outcomes, outs, work)
        outcomes[:] = [outcome.left for outcome in outcomes]
        return step, found + self._weighed(known, outcomes, step.weights, memory, work)

    def _weighed(
        self, known: _Ends, outcomes: Sequence[Outcome], weights: Tensor, memory: Memory, work: Tensor | None
    ) -> Found:
        """Replay the weighted sums of class gradients that were not made, as far as they are fit for it."""
        outs = [weights.new_empty(p.shape, dtype=dtype) for p, dtype in known.weighed]
        places = self._places(outs, work)
        weighing = known.weighings.get(places)
        if weighing is None:
            if not outs or not known.weighings.open:
                return []
            weighing, area = Weighing(known.layout, outs), Area(known.needs, work)
            if not weighing.record(self._recorder, outcomes, memory, outs, area):
                known.weighings.close()
                return []
            known.weighings.put(places, weighing)
        found = weighing.replay(weights, outs)
        return [([(p, 0)], direction) for (p, _), direction in zip(known.weighed, found, strict=True)]

    def _places(self, outs: Sequence[Tensor], work: Tensor | None) -> Hashable:
        """Return where directions lie that recordings write to, which small ones are not, and where these work."""
        place = self._recorder.place
        return None if work is None else place(work), *[None if is_small(out) else place(out) for out in outs]

    def make_up(self, losses: Tensor, layout: ClassLayout, memory: Memory) -> MakeUp | None:
        """Return the recordings of batches like this one, None if such a batch is new or nothing can be replayed."""
        if not self._recorder.ready(losses):
            return None
        formats = (memory.products, memory.convolutions, *_library_settings())
        key = (layout.make_up.key, layout.order is None, memory.limit, *formats)
        found = self._make_ups.get(key)
        if found is None and self._make_ups.due(key):
            found = MakeUp(layout)
            self._make_ups.put(key, found)
        if found is not None:
            found.follow(layout)
        return found


@dataclass
class _Ends:
    """Recordings of the ends of steps whose calls were replayed by the same recordings, or launched alike."""

    layout: ClassLayout
    directions: Sequence[tuple[torch.Size, torch.dtype]] | None = None
    """Of each pack of class gradients that were made, once known."""
    weighed: Sequence[tuple[nn.Parameter, torch.dtype]] = ()
    """Of class gradients that were not made, those whose sum can be recorded, in the order of the outcomes."""
    needs: Needs = field(default_factory=Needs)
    shelf: Shelf[Ending] = field(default_factory=Shelf)
    weighings: Shelf[Weighing] = field(default_factory=Shelf)

    def learn(self, outcomes: Sequence[Outcome], memory: Memory) -> None:
        """Find out which class gradients can be weighed by a recording, unless they are many."""
        terms = [pair for outcome in outcomes for pair in outcome.not_made(self.layout, memory, outcome.tensors)]
        fit = [(p, term.dtype) for p, term in terms if term.at_once]
        self.weighed = fit if sum([p.numel() * dtype.itemsize for p, dtype in fit]) <= _DIRECTIONS else ()


class MakeUp:
    """Recordings for batches of the same number of examples of each class."""

    def __init__(self, layout: ClassLayout) -> None:
        self.layout = layout.placed()
        self.pieces: dict[Hashable, Piece] = {}
        self.works: Shelf[Small] = Shelf(kept=_WORKS)
        self._ends: Shelf[_Ends] = Shelf()
        self._latest = layout

    def follow(self, layout: ClassLayout) -> None:
        """Bring the layout of a batch to where recordings read it."""
        if layout is not self._latest:
            layout.move_to(self.layout)
            self._latest = layout

    def ends(self, outcomes: Sequence[Outcome], key: tuple[Hashable, ...], place: Locate) -> _Ends | None:
        """Return what is recorded of the ends of steps that went like this one so far, None if it will go otherwise."""
        if not outcomes or any(isinstance(outcome, Launched) and not outcome.settled for outcome in outcomes):
            return None
        key = (*key, *[outcome.key(place) for outcome in outcomes])
        found = self._ends.get(key)
        if found is None and self._ends.open:
            found = _Ends(self.layout)
            self._ends.put(key, found)
        return found


def _launched(
    outcomes: list[Outcome],
    given: Sequence[Tensor],
    losses: Tensor,
    layout: ClassLayout,
    memory: Memory,
    rule: Rule,
    known: _Ends | None,
) -> tuple[Step, Found]:
    """Launch the end of a step one by one; the outcomes are let go as the direction comes."""
    if known is not None and known.directions is None:
        known.learn(outcomes, memory)
    terms: dict[nn.Parameter, Term] = {}
    for outcome in outcomes:
        terms.update(outcome.terms(layout, memory, outcome.tensors))
    outcomes.clear()
    with memory.worked_in(memory.scratch if known is None else Area(known.needs, None)):
        packs = pack(terms)
        terms.clear()
        squares = [*[each.term.square_norms() for each in packs], *given]
        squares = squares or [promote(losses).new_zeros(len(layout))]  # nothing is trained
        step = judge(total(squares), rule, class_losses(losses, layout), layout)
        made = [isinstance(each.term, Dense) for each in packs]
        found = weigh_packs(packs, [step.weights] * len(packs), finite=False)
    if known is not None and known.directions is None:
        directions = [direction for (_, direction), dense in zip(found, made, strict=True) if dense]
        if sum([direction.nbytes for direction in directions]) <= _DIRECTIONS:
            known.directions = [(direction.shape, direction.dtype) for direction in directions]
    return step, found


def _not_made(outcomes: Sequence[Outcome], layout: ClassLayout, memory: Memory, done: Container[int]) -> list[Pack]:
    """Return the class gradients that follow from examples, without those of the parameters whose ids are ``done``."""
    return [
        Pack(term, [(p, 0)])
        for outcome in outcomes
        if not all(id(p) in done for p in outcome.unmade)
        for p, term in outcome.not_made(layout, memory, outcome.tensors)
        if id(p) not in done
    ]


def _is_pure(rule: Rule) -> bool:
    """Whether the weights follow from the norms and what ``repr`` tells alone; of a user's rule that is not known."""
    while type(rule) is Prefer:
        rule = rule.rule
    return type(rule) in (Normalize, Sum)


def _library_settings() -> tuple[bool, ...]:
    return (
        torch._C._get_cudnn_enabled(),
        torch._C._get_cudnn_benchmark(),
        torch._C._get_cudnn_deterministic(),
        torch._C._get_deterministic_algorithms(),
    )

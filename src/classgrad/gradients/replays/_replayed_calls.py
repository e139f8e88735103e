"""Class gradients of a layer's call made by replaying what was launched for it before.

A recording reads its inputs where they lay when it was made. Small ones are copied there. Large ones are not, but an
allocator that is asked for the same sizes in the same order gives out the same places, so from step to step they mostly
lie where they lay before, and the recording is replayed only where all of them do. So it is with what is written: small
tensors stay the recording's own, large ones are the step's, in places where they were before, and so is the memory that
it works in.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeGuard

import torch
from torch import Tensor, nn

from classgrad.gradients import kernels
from classgrad.gradients._layout import ClassLayout
from classgrad.gradients.engines._audit import CoveredCall
from classgrad.gradients.engines._fused import Plan, Taker
from classgrad.gradients.layers._linear import ExamplesTerm
from classgrad.gradients.replays._outcomes import (
    After,
    Form,
    Hit,
    Launched,
    Outcome,
    Recording,
    Terms,
    tensors_of,
    twin_of,
    where,
)
from classgrad.gradients.replays._recorder import Recorder, Shelf, Static
from classgrad.gradients.terms._scratch import Area, Needs, is_small
from classgrad.gradients.terms._sheet import Block, Sheet
from classgrad.gradients.terms._terms import Dense, Memory, Sums, Term

_MOST = 2**23
"""Bytes of class gradients that a recording may make in memory of its own."""


@dataclass
class Piece:
    """Recordings of a call at one point of a step, for different places."""

    shelf: Shelf[Recording] = field(default_factory=Shelf)
    needs: Needs = field(default_factory=Needs)
    apart: bool = False
    """Whether it is always launched."""
    columns: int = 0
    """Of the block that it opens, if it does."""
    _rows: Tensor | None = None
    _own: dict[nn.Parameter, Tensor] = field(default_factory=dict)

    def fresh(self, classes: int, like: Tensor) -> Tensor | None:
        """Return the matrix of the block that it is about to open; a small one stays from step to step."""
        if not self.columns or self._rows is not None:
            return self._rows
        rows = like.new_empty(classes, self.columns)
        if is_small(rows):
            self._rows = rows
        return rows

    def own(self, made: Terms) -> Mapping[nn.Parameter, Tensor]:
        """Return where recordings write class gradients that are not on the sheet.

        It is the same for all of them, since a step replays one, and taken at once: whatever is taken later on between
        tensors of the steps has these lie elsewhere, so that they are recorded again.
        """
        for p, term in made.items():
            if _is_apart(term) and not _alike(self._own.get(p), term.held):
                self._own[p] = torch.empty_like(term.held)
        return self._own


class Replaying(Taker):
    """Replays what it can of the work on output gradients, and records what comes again in the same places.

    Calls that can never be recorded are the business of a :class:`Taker`; of the others there are ``outcomes`` in the
    order in which they came, whose class gradients do not depend on what happened to be recorded. ``pieces`` are the
    recordings for such batches, which read the layout off ``static``; None for the first of its kind.
    """

    def __init__(
        self,
        plan: Plan,
        layout: ClassLayout,
        memory: Memory,
        recorder: Recorder,
        pieces: dict[Hashable, Piece] | None,
        static: ClassLayout,
    ) -> None:
        super().__init__(plan, layout, memory)
        self.outcomes: list[Outcome] = []
        self._others = Sheet(*self.sheet.size)
        """Of calls that are never recorded: their norms are had, and they are weighed, apart from the outcomes'."""
        self._shared = {p for p, times in self.uses.items() if times > 1}
        self._recorder = recorder
        self._pieces = pieces
        self._static = static

    def __call__(self, each: CoveredCall, b: Tensor, through: bool) -> Tensor | None:
        """Take an output gradient."""
        call = each.call
        options = self._options(each, b, through)
        if options is None:
            return super().__call__(each, b, through)
        if self._pieces is None:
            passed, _ = self._make(each, b, through, options)
            call.release()
            return passed
        block = self.sheet.open(b)
        used, columns = (0, 0) if block is None else (block.used, block.rows.shape[1])
        left = self.memory.left
        key = (*map(id, each.parameters.values()), through, options, *self.sheet.state, used, columns, left)
        piece = self._pieces.get(key)
        if piece is None:
            piece = self._pieces[key] = Piece()
        fresh = piece.fresh(len(self.layout), b)
        if piece.apart:
            self.sheet.next = fresh
            passed, _ = self._make(each, b, through, options, settled=True)
            self.sheet.next = None
            call.release()
            return passed
        tensors = tensors_of(call, b)
        out = torch.empty_like(call.input) if through and not is_small(call.input) else None
        work = piece.needs.memory(b)
        written = (out, fresh, None if block is None else block.rows, work)
        places = self._places(tensors, *written, *call.module._parameters.values(), call.weight)
        recording = piece.shelf.get(places)
        if recording is not None and self._recorder.ready(b):
            self._replay(recording, tensors, each, block, fresh)
            return out if recording.passed is None else recording.passed.clone()
        self.sheet.next = fresh
        area = Area(piece.needs, work)
        with self.memory.worked_in(area):
            passed, made = self._make(each, b, through, options, out=out)
        self.sheet.next = None
        own = {} if made is None else piece.own(made)
        opened = self.sheet.open(b)
        if opened is not block and opened is not None:
            piece.columns = opened.rows.shape[1]
        if made is not None and area.complete and piece.shelf.due(places) and self._recorder.ready(b):
            after = After(self.sheet.state, left - self.memory.left)
            area = Area(piece.needs, work)
            recording = self._record(tensors, each, through, out, made, own, block, used, after, area)
            if recording is None:
                piece.apart = True
            else:
                piece.shelf.put(places, recording)
        call.release()
        return passed

    def _places(self, inputs: Sequence[Tensor], *others: Tensor | None) -> Hashable:
        """Return how inputs lie in memory, where the large ones do, and where all others do, which are dense."""
        place = self._recorder.place
        sides = [where(v, place) for v in inputs]
        return (*sides, *[None if v is None else place(v) for v in others])

    def _options(self, each: CoveredCall, b: Tensor, through: bool) -> Hashable | None:
        """Return what decides about a call's operations beside its tensors; None if it can never be recorded."""
        call, rule = each.call, each.rule
        if rule.options is None or self.wanted is not None or call.kwargs or len(call.inputs) != 1:
            return None
        if b.dtype not in (torch.float32, torch.float64) or (through and not kernels.lies_by_examples(call.input)):
            return None
        if not each.parameters or (self._shared and self._shared.intersection(map(id, each.parameters.values()))):
            return None
        return rule.options(call)

    def _make(
        self,
        each: CoveredCall,
        b: Tensor,
        through: bool,
        options: Hashable,
        *,
        out: Tensor | None = None,
        settled: bool = False,
    ) -> tuple[Tensor | None, Terms | None]:
        """Launch the work one by one; None in place of the terms if they are none of the outcomes."""
        passed, found = self.find(each, b, through, out)
        terms = [found[name] for name in each.parameters]
        if not all(map(_can_be_recorded, terms)):
            self.add(each, found, b)
            return passed, None
        made = {p: term.settle(self.sheet, b, False) for p, term in zip(each.parameters.values(), terms, strict=True)}
        self.outcomes.append(Launched(made, options, settled))
        self._recorder.tally.launched += 1
        return passed, made

    def settle(self, term: Term, b: Tensor) -> Term:
        """Return class gradients of a call that is never recorded, on the sheet of these where that is their place."""
        self.sheet.skip(term.shape)
        return term.settle(self._others, b, False)

    def _replay(
        self,
        recording: Recording,
        tensors: Sequence[Tensor],
        each: CoveredCall,
        block: Block | None,
        fresh: Tensor | None,
    ) -> None:
        opened = None if fresh is None else Block(fresh)
        after = recording.after
        for form in recording.forms:
            on = opened if form.fresh else block
            if form.column is not None and on is not None:
                on.used = form.column + form.parameter.numel()
        self.sheet.go_on(after.state, opened or block)
        self.memory.left -= after.taken
        recording.inputs.fill(tensors)
        recording.replay()
        self._recorder.tally.replayed += 1
        self.outcomes.append(Hit(recording, each, tensors if recording.not_made else (), (block, opened)))
        each.call.release()

    def _record(
        self,
        tensors: Sequence[Tensor],
        each: CoveredCall,
        through: bool,
        out: Tensor | None,
        made: Terms,
        own: Mapping[nn.Parameter, Tensor],
        block: Block | None,
        used: int,
        after: After,
        area: Area,
    ) -> Recording | None:
        """Record what was just launched one by one and made these terms; None if it is always to be launched."""
        if all(isinstance(term, ExamplesTerm) for term in made.values()):
            return None  # nothing was
        inputs = Static.of(tensors, self._recorder.stage)
        call, b = twin_of(each.call, inputs.stand_ins(tensors))
        passed = self._recorder.stage(len(tensors), each.call.input) if through and out is None else None
        layout, memory = self._static.renewed(), copy.copy(self.memory)
        memory.scratch = area

        def work() -> list[Form]:
            if through and each.rule.through is not None:
                found = each.rule.through(call, b, layout, memory, out if passed is None else passed)[1]
            else:
                found = each.rule.terms(call, b, layout, memory, frozenset(each.parameters))
            in_use = {id(block): used}
            return [_written(p, found[name], made[p], own, block, in_use) for name, p in each.parameters.items()]

        recorded = self._recorder.record(work)
        return None if recorded is None else Recording(*recorded, inputs, passed, after)


def _alike(own: Tensor | None, held: Tensor) -> bool:
    return own is not None and own.shape == held.shape and own.dtype == held.dtype


def _is_apart(term: Term) -> TypeGuard[Dense | Sums]:
    """Whether a term holds values that are not on the sheet."""
    return isinstance(term, Sums) or (isinstance(term, Dense) and term.block is None)


def _written(
    p: nn.Parameter,
    term: Term,
    made: Term,
    own: Mapping[nn.Parameter, Tensor],
    block: Block | None,
    in_use: dict[int, int],
) -> Form:
    """Have a term's class gradients made where those of the step are, or in its own place, and say where that is.

    ``block`` was open before the call, ``in_use`` are the columns on each block so far.
    """
    if isinstance(made, Dense) and made.block is not None:
        again = Block(made.block.rows, in_use.get(id(made.block), 0))
        again.take_up(made.column, made.column + p.numel())
        in_use[id(made.block)] = again.used
        term.fill(made.held)
        return Form(p, column=made.column, fresh=made.block is not block)
    if _is_apart(term):
        return Form(p, own[p].copy_(term.held), isinstance(term, Dense))
    return Form(p)


def _can_be_recorded(term: Term) -> bool:
    """Whether what a term reads is known, and it holds little of its own."""
    return isinstance(term, ExamplesTerm) or (isinstance(term, (Dense, Sums)) and term.held.nbytes <= _MOST)

"""Class gradients of a layer's call made by replaying what was launched for it before.

Inputs and output gradients are too large to be copied to where a recording reads them. But an allocator that is asked
for the same sizes in the same order gives out the same places, so from step to step they mostly lie where they lay
before, and a recording is replayed only where all of them do. What is made in a recording is small and stays its own;
class gradients go to the sheet of the step, the input's gradient to a tensor of the step, which must lie where they lay
before as well.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import NamedTuple

import torch
from torch import Tensor, nn

from classgrad.gradients import kernels
from classgrad.gradients._audit import Calls, CoveredCall
from classgrad.gradients._fused import Taker
from classgrad.gradients._layout import ClassLayout
from classgrad.gradients._recorder import Recorder, Shelf
from classgrad.gradients._sheet import Block
from classgrad.gradients._taps import Call
from classgrad.gradients._terms import Dense, Memory, Sums, Term
from classgrad.gradients.layers._linear import ExamplesTerm

Terms = Mapping[nn.Parameter, Term]

_numbers = count()


class _Form(NamedTuple):
    """What a recording makes of a parameter: ``values`` of its own, columns on the sheet, or nothing."""

    parameter: nn.Parameter
    values: Tensor | None = None
    summed: bool = False
    """Whether its own values are those of classes, not of examples."""
    column: int | None = None
    fresh: bool = False
    """Whether the columns are on the block that the call opened."""


@dataclass(frozen=True)
class Recording:
    """What was launched for a call, and what has become of the step by then."""

    replay: Callable[[], None] | None
    """None where nothing was launched: class gradients that are not made."""
    forms: Sequence[_Form]
    after: tuple[tuple[int, int], int, int]
    """The state of the sheet, the columns in use on its open block, and the bytes that the class gradients took."""
    number: int = field(default_factory=lambda: next(_numbers))
    """Never given twice."""

    @property
    def holds(self) -> bool:
        """Whether what went into the call is needed at the end of the step."""
        return any(form.values is None and form.column is None for form in self.forms)


@dataclass
class Piece:
    """Recordings of a call at one point of a step, for different places."""

    shelf: Shelf[Recording] = field(default_factory=Shelf)
    columns: int = 0
    """Of the block that it opens, if it does."""


class Hit(NamedTuple):
    """A call whose work was replayed."""

    recording: Recording
    each: CoveredCall
    b: Tensor | None
    blocks: tuple[Block | None, Block | None]
    """The open block before the call, and the one that it opened."""

    def terms(
        self, layout: ClassLayout, memory: Memory, block_of: Callable[[Block], Block] = lambda block: block
    ) -> Iterator[tuple[nn.Parameter, Term]]:
        """Yield its class gradients, those on a sheet as being on the block that is given for theirs."""
        names = {id(p): name for name, p in self.each.parameters.items()}
        for form in self.recording.forms:
            p = form.parameter
            term: Term
            if form.values is not None:
                term = Dense(form.values, memory) if form.summed else Sums(form.values, layout, memory)
            elif form.column is not None:
                block = self.blocks[form.fresh]
                assert block is not None
                block = block_of(block)
                term = Dense(block.view(form.column, p.shape), memory, block, form.column)
            else:
                assert self.b is not None
                name = names[id(p)]
                term = self.each.rule.terms(self.each.call, self.b, layout, memory, frozenset({name}))[name]
            yield p, term


class Replaying(Taker):
    """Replays what it can of the work on output gradients, and records what comes again in the same places.

    Calls that can never be recorded are the business of a :class:`Taker`; of the others there are ``outcomes`` in the
    order in which they came, which do not depend on what happened to be recorded.
    """

    def __init__(
        self,
        calls: Calls,
        parameters: Sequence[nn.Parameter],
        layout: ClassLayout,
        memory: Memory,
        room: int,
        recorder: Recorder,
        pieces: dict[Hashable, Piece] | None,
        static: ClassLayout,
    ) -> None:
        super().__init__(calls, parameters, layout, memory)
        self.outcomes: list[Hit | Terms] = []
        self._shared = {p for p, times in self.uses.items() if times > 1}
        self._room = room
        self._recorder = recorder
        self._pieces = pieces
        self._static = static

    def __call__(self, each: CoveredCall, b: Tensor, through: bool) -> Tensor | None:
        """Take an output gradient."""
        call = each.call
        options = self._options(each, b, through)
        if options is None:
            return super().__call__(each, b, through)
        out = torch.empty_like(call.input) if through else None
        if self._pieces is None:
            self._make(each, b, through, out)
            call.release()
            return out
        block = self.sheet.open(b)
        used = 0 if block is None else block.used
        key = (*map(id, each.parameters.values()), through, options, *self.sheet.state, used)
        piece = self._pieces.get(key)
        if piece is None:
            piece = self._pieces[key] = Piece()
        fresh = b.new_empty(len(self.layout), piece.columns) if piece.columns else None
        places = _places(call, b, out, fresh, None if block is None else block.rows)
        recording = piece.shelf.get(places)
        if recording is not None and self._recorder.suits(b):
            self._replay(recording, each, b, block, fresh)
        else:
            left = self.memory.left
            self.sheet.next = fresh
            made = self._make(each, b, through, out)
            self.sheet.next = None
            opened = self.sheet.open(b)
            if opened is not block and opened is not None:
                piece.columns = opened.rows.shape[1]
            if made is not None and piece.shelf.due(places) and self._recorder.suits(b):
                work = partial(self._work, each, b, through, out, made, block, used)
                after = (self.sheet.state, 0 if opened is None else opened.used, left - self.memory.left)
                self._record(piece.shelf, places, work, after, made)
            call.release()
        return out

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

    def _make(self, each: CoveredCall, b: Tensor, through: bool, out: Tensor | None) -> Terms | None:
        """Launch the work one by one; None if it would take too much memory to be recorded, so that it never is."""
        _, found = self.find(each, b, through, out)
        terms = [found[name] for name in each.parameters]
        if not all(_fits(term, self._room) for term in terms):
            self.add(each, found, b)
            return None
        settled = [self.settle(term, b) for term in terms]
        made = dict(zip(each.parameters.values(), settled, strict=True))
        self.outcomes.append(made)
        return made

    def _replay(
        self, recording: Recording, each: CoveredCall, b: Tensor, block: Block | None, fresh: Tensor | None
    ) -> None:
        opened = None if fresh is None else Block(fresh)
        last = opened or block
        state, used, taken = recording.after
        if last is not None:
            last.used = used
        self.sheet.go_on(state, last)
        self.memory.left -= taken
        if recording.replay is not None:
            recording.replay()
        self.outcomes.append(Hit(recording, each, b if recording.holds else None, (block, opened)))
        if not recording.holds:
            each.call.release()

    def _record(
        self,
        shelf: Shelf[Recording],
        places: Hashable,
        work: Callable[[], list[_Form]],
        after: tuple[tuple[int, int], int, int],
        made: Terms,
    ) -> None:
        """Record what was just launched one by one, and what it made of the step."""
        if all(isinstance(term, ExamplesTerm) for term in made.values()):
            forms = [_Form(p) for p in made]
            shelf.put(places, Recording(None, forms, after))
            return
        recorded = self._recorder.record(work)
        if recorded is not None:
            shelf.put(places, Recording(*recorded, after))

    def _work(
        self,
        each: CoveredCall,
        b: Tensor,
        through: bool,
        out: Tensor | None,
        made: Terms,
        block: Block | None,
        used: int,
    ) -> list[_Form]:
        """Do what made these terms again, with what it reads of the layout and what it makes in places that stay."""
        memory = copy.copy(self.memory)
        if through and each.rule.through is not None:
            found = each.rule.through(each.call, b, self._static, memory, out)[1]
        else:
            found = each.rule.terms(each.call, b, self._static, memory, frozenset(each.parameters))
        forms = []
        in_use = {id(block): used}
        for name, p in each.parameters.items():
            settled, term = made[p], found[name]
            if isinstance(settled, Dense) and settled.block is not None:
                again = Block(settled.block.rows, in_use.get(id(settled.block), 0))
                again.take_up(settled.column, settled.column + p.numel())
                in_use[id(settled.block)] = again.used
                term.fill(settled.held)
                forms.append(_Form(p, column=settled.column, fresh=settled.block is not block))
            elif isinstance(term, (Dense, Sums)):
                values = term.held
                if values.untyped_storage().data_ptr() == b.untyped_storage().data_ptr():
                    values = values.clone()  # its own, not the output gradient of this step
                forms.append(_Form(p, values, isinstance(term, Dense)))
            else:
                forms.append(_Form(p))
        return forms


def _fits(term: Term, room: int) -> bool:
    """Whether a term can be part of a recording: what it reads is known and it takes no more memory than that."""
    if isinstance(term, ExamplesTerm):
        return term.working_bytes <= room
    return isinstance(term, (Dense, Sums))


def _places(call: Call, b: Tensor, *others: Tensor | None) -> tuple[Hashable, ...]:
    """Return where all lies that work on a call reads and writes, and how; ``others`` are dense."""
    a = call.input
    pointers = [
        0 if v is None else v.data_ptr() for v in (*others, *call.module._parameters.values(), *(call.saved or ()))
    ]
    sides = (a.data_ptr(), a.shape, a.stride(), a.dtype, b.data_ptr(), b.shape, b.stride(), b.dtype)
    return (*sides, *pointers)

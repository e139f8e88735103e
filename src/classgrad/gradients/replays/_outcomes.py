"""What became of a layer's call in a step that is replayed in part, and how the end of the step is to read it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import NamedTuple, TypeGuard

from torch import Tensor, nn

from classgrad.gradients._layout import ClassLayout
from classgrad.gradients.engines._audit import CoveredCall
from classgrad.gradients.layers._linear import ExamplesTerm
from classgrad.gradients.layers._taps import Call
from classgrad.gradients.replays._recorder import Static
from classgrad.gradients.terms._scratch import is_small
from classgrad.gradients.terms._sheet import Block
from classgrad.gradients.terms._terms import Dense, Memory, Sums, Term

Terms = Mapping[nn.Parameter, Term]
Found = Iterator[tuple[nn.Parameter, Term]]
Blocks = tuple[Block | None, Block | None]
"""The block that was open before a call, and the one that the call opened."""
Locate = Callable[[Tensor], Hashable]
"""Says where values lie."""

_numbers = count()


class Form(NamedTuple):
    """What a recording makes of a parameter: ``values`` of its own, columns on the sheet, or nothing."""

    parameter: nn.Parameter
    values: Tensor | None = None
    summed: bool = False
    """Whether its own values are those of classes, not of examples."""
    column: int | None = None
    fresh: bool = False
    """Whether the columns are on the block that the call opened."""


class After(NamedTuple):
    """What has become of a step when a call was dealt with."""

    state: tuple[int, int]
    """Of the sheet."""
    taken: int
    """Bytes that the class gradients took."""


@dataclass(frozen=True)
class Recording:
    """What was launched for a call."""

    replay: Callable[[], None]
    forms: Sequence[Form]
    inputs: Static
    """Where it reads what is small."""
    passed: Tensor | None
    """Where it writes the gradient of the layer's input, if that is small; good until the next recording's."""
    after: After
    number: int = field(default_factory=lambda: next(_numbers))
    """Never given twice."""

    @cached_property
    def not_made(self) -> Sequence[nn.Parameter]:
        """The parameters whose class gradients are not: they follow from what went into the call."""
        return [form.parameter for form in self.forms if form.values is None and form.column is None]


class Hit(NamedTuple):
    """A call whose work was replayed."""

    recording: Recording
    each: CoveredCall
    tensors: Sequence[Tensor]
    """What class gradients that were not made follow from; nothing if all were."""
    blocks: Blocks

    @property
    def unmade(self) -> Sequence[nn.Parameter]:
        """The parameters whose class gradients were not made."""
        return self.recording.not_made

    def key(self, place: Locate) -> Hashable:
        """Return what tells it from others at the end of a step."""
        return self.recording.number

    def terms(
        self,
        layout: ClassLayout,
        memory: Memory,
        tensors: Sequence[Tensor],
        block_of: Callable[[Block], Block] = lambda block: block,
    ) -> Found:
        """Yield the class gradients, those that were not made as they follow from ``tensors``.

        ``block_of`` a block of the sheet is where those on it are read.
        """
        for form in self.recording.forms:
            p = form.parameter
            if form.values is not None:
                yield p, Dense(form.values, memory) if form.summed else Sums(form.values, layout, memory)
            elif form.column is not None:
                block = self.blocks[form.fresh]
                assert block is not None
                block = block_of(block)
                yield p, Dense(block.view(form.column, p.shape), memory, block, form.column)
        yield from self._others(layout, memory, tensors)

    def not_made(self, layout: ClassLayout, memory: Memory, tensors: Sequence[Tensor]) -> Found:
        """Yield the class gradients that were not made, as they follow from ``tensors``."""
        return self._others(layout, memory, tensors)

    @property
    def left(self) -> Hit:
        """What is left of it when class gradients that were made are weighed."""
        return self._replace(blocks=(None, None))

    def _others(self, layout: ClassLayout, memory: Memory, tensors: Sequence[Tensor]) -> Found:
        if not tensors:
            return
        call, b = twin_of(self.each.call, tensors)
        not_made = self.recording.not_made
        names = {id(p): name for name, p in self.each.parameters.items()}
        wanted = frozenset([names[id(p)] for p in not_made])
        found = self.each.rule.terms(call, b, layout, memory, wanted)
        for p in not_made:
            yield p, found[names[id(p)]]


class Launched(NamedTuple):
    """A call whose work was launched operation by operation."""

    made: Terms
    options: Hashable
    """What decides about the operations on it beside tensors."""
    settled: bool
    """Whether it will be launched the next time, too."""

    @property
    def tensors(self) -> list[Tensor]:
        """What the class gradients follow from that are not on the sheet."""
        return [values for term in self.made.values() for values in _read(term)]

    @property
    def unmade(self) -> Sequence[nn.Parameter]:
        """The parameters whose class gradients were not made."""
        return [p for p, term in self.made.items() if isinstance(term, ExamplesTerm)]

    def key(self, place: Locate) -> Hashable:
        """Return what tells it from others at the end of a step: what is read, and where it lies if it is large."""
        return self.options, *[(id(p), *_described(term, place)) for p, term in self.made.items()]

    def terms(
        self,
        layout: ClassLayout,
        memory: Memory,
        tensors: Sequence[Tensor],
        block_of: Callable[[Block], Block] | None = None,
    ) -> Found:
        """Yield the class gradients as they follow from ``tensors``; see :meth:`Hit.terms`."""
        if block_of is None:
            yield from self.made.items()
            return
        given = iter(tensors)
        for p, term in self.made.items():
            if isinstance(term, ExamplesTerm):
                yield p, term.moved(next(given), next(given), layout, memory)
            elif _on_sheet(term):
                assert term.block is not None
                block = block_of(term.block)
                yield p, Dense(block.view(term.column, p.shape), memory, block, term.column)
            elif isinstance(term, Dense):
                yield p, Dense(next(given), memory)
            else:
                yield p, Sums(next(given), layout, memory)

    def not_made(self, layout: ClassLayout, memory: Memory, tensors: Sequence[Tensor]) -> Found:
        """Yield the class gradients that were not made; see :meth:`Hit.not_made`."""
        found = self.left.terms(layout, memory, tensors, lambda block: block)
        return ((p, term) for p, term in found if isinstance(term, ExamplesTerm))

    @property
    def left(self) -> Launched:
        """What is left of it when those on the sheet are weighed."""
        return self._replace(made={p: term for p, term in self.made.items() if not _on_sheet(term)})


Outcome = Hit | Launched


def tensors_behind(outcomes: Sequence[Outcome]) -> list[Tensor]:
    """Return what the outcomes' class gradients follow from, one outcome's after the other's."""
    return [values for outcome in outcomes for values in outcome.tensors]


def _on_sheet(term: Term) -> TypeGuard[Dense]:
    return isinstance(term, Dense) and term.block is not None


def _read(term: Term) -> tuple[Tensor, ...]:
    if isinstance(term, ExamplesTerm):
        return term.a, term.b
    assert isinstance(term, (Dense, Sums))
    return () if _on_sheet(term) else (term.held,)


def _described(term: Term, place: Locate) -> tuple[Hashable, ...]:
    if _on_sheet(term):
        assert term.block is not None
        return place(term.block.rows), term.block.rows.shape, term.column
    return type(term), *[where(values, place) for values in _read(term)]


def where(values: Tensor, place: Locate) -> Hashable:
    """Return how values lie in memory, and the place if they are large."""
    return values.shape, values.stride(), values.dtype, None if is_small(values) else place(values)


def tensors_of(call: Call, b: Tensor) -> list[Tensor]:
    """Return what work on a call reads beside the module."""
    return [call.input, b, *(call.saved or ())]


def twin_of(call: Call, tensors: Sequence[Tensor]) -> tuple[Call, Tensor]:
    """Return a call and output gradient of these tensors."""
    a, b, *saved = tensors
    twin = copy.copy(call)
    twin.inputs = (a,)
    twin.saved = (saved[0], saved[1]) if saved else None
    return twin, b

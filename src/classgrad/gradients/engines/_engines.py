"""The choice of engine for a graph, with everything that must be remembered between steps."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Literal

import torch
from torch import Tensor, nn

from classgrad.gradients._combine import Terms
from classgrad.gradients._layout import ClassLayout
from classgrad.gradients.engines._audit import (
    Calls,
    CoveredCall,
    covered_calls,
    may_mix,
    mixing_layer,
    probe,
    uncovered,
)
from classgrad.gradients.engines._capture import Capture, check_in_sight, check_unmodified
from classgrad.gradients.engines._fused import Plan, fused_terms
from classgrad.gradients.engines._graph import Graph
from classgrad.gradients.engines._joint import joint_terms
from classgrad.gradients.engines._places import NO_PLACES, Choices, Place, Places, choose_places, places_of, speaks_up
from classgrad.gradients.layers._registry import will_have_rule
from classgrad.gradients.terms._scratch import Scratch
from classgrad.gradients.terms._terms import Memory

Engine = Literal["auto", "fused", "joint", "split"]

_PROBES = 8
"""Steps in a row that are probed for mixing if no probe is conclusive."""

_GROUPS = 4
"""Of examples, drawn regardless of classes, that are told from each other to find mixing within classes."""


class Engines:
    """Makes class gradients of a model's losses, by the fused engine where it is exact and by ``joint`` elsewhere."""

    def __init__(self, model: nn.Module, engine: Engine, max_memory: int, mixing: Sequence[type[nn.Module]]) -> None:
        self.fused = engine in ("auto", "fused")
        self.max_memory = max_memory
        self.mixing = tuple(mixing)
        self._may_mix = may_mix(model, self.mixing)
        self.names: dict[nn.Module, str] = {module: name or "the model" for name, module in model.named_modules()}
        self._mixers: dict[tuple[object, ...], frozenset[int]] = {}
        self._named: dict[tuple[object, ...], int] = {}
        self._doubtful: dict[tuple[object, ...], int] = {}
        self._within: dict[tuple[object, ...], bool] = {}
        self._choices: dict[tuple[object, ...], Choices] = {}
        self._ends: dict[tuple[int, ...], set[int]] = {}
        self._warned: set[str] = set()
        self._scratch = Scratch()
        self._capture = Capture(model.modules() if self.fused else (), _has_rule)

    def close(self) -> None:
        """Remove the hooks."""
        self._capture.close()

    def abandon(self) -> None:
        """Leave the hooks to remove themselves when they are called next."""
        self._capture.abandon()

    @property
    def closed(self) -> bool:
        """Whether the hooks are gone."""
        return self._capture.closed

    @property
    def holding(self) -> bool:
        """Whether there is anything to release."""
        return self._capture.holding

    @contextmanager
    def forward(self, layout: ClassLayout, rest: bool) -> Iterator[None]:
        """Let the layers run on a batch of this layout, unwatched if the step will not need to know what they saw."""
        capture = self._capture
        capture.resting, capture.recorded = rest, layout.recorded
        try:
            yield
        finally:
            capture.resting = capture.recorded = False

    def watch(self) -> None:
        """Take note from now on of layers that backward passes run."""
        self._capture.again.clear()

    def check(self, graph: Graph) -> None:
        """Raise if those of a graph ran layers that it does not know of."""
        check_in_sight(self._capture.again, graph, self.names)

    def release(self, graph: Graph) -> None:
        """Let go of what the layers of a graph saw."""
        self._capture.release(graph.marked)

    def memory(self) -> Memory:
        """Return what the class gradients of a step may take."""
        return Memory(self.max_memory, self._scratch)

    def terms(
        self,
        losses: Tensor,
        layout: ClassLayout,
        plan: Plan | None,
        parameters: Sequence[nn.Parameter],
        seed: Tensor | float,
        *,
        gram: bool = False,
        keep_graph: bool = False,
    ) -> Terms:
        """Return ``seed`` times the sums of the example gradients of each class."""
        memory = self.memory()
        if plan is None:
            return joint_terms(losses, layout, parameters, seed, memory, keep_graph)
        return fused_terms(losses, layout, plan, parameters, seed, memory, gram, keep_graph)

    def plan(
        self, losses: Tensor, layout: ClassLayout, graph: Graph, parameters: Sequence[nn.Parameter]
    ) -> Plan | None:
        """Return what the fused engine may do on this graph, or None if the step needs ``joint``."""
        if not self.fused:
            return None
        mixer = mixing_layer(self._may_mix, self.names, self.mixing)
        if mixer is not None:
            self._warn(f"Layer {mixer} mixes the examples of a batch", len(layout))
            return None
        calls = covered_calls(self._capture.calls(graph.marked), layout.examples)
        check_unmodified((each.call for each in calls if not each.rule.blind.issuperset(each.parameters)), self.names)
        modes = tuple(module.training for module in self.names)  # an operation may mix in one mode and not in another
        key = (graph.form, *(id(each.call.module) for each in calls), modes)
        mixers = self._audit(key, losses, layout, graph, calls)
        apart = [each for number, each in enumerate(calls) if number not in mixers]
        ids = uncovered(graph, apart, parameters)
        rest = [p for p in parameters if id(p) in ids] if ids else []
        places = self._places(key, losses, layout, graph, apart, rest, bool(mixers)) if rest else NO_PLACES
        if mixers and rest and not places.each:
            module = calls[self._named[key]].call.module
            name = f"{self.names[module]} ({type(module).__name__})"
            self._warn(f"Something after layer {name} mixes the examples of a batch", len(layout))
            return None
        covered = [p for p in parameters if id(p) not in ids] if ids else parameters
        return Plan(apart, covered, places, [] if places.each else rest, self._ends_of(graph, apart, places))

    def _ends_of(self, graph: Graph, calls: Calls, places: Places) -> list[CoveredCall | Place]:
        """Return the calls and places that have no others below them; worked out once for each form of graph."""
        each: list[CoveredCall | Place] = [*calls, *places.each]
        numbers = [graph.nodes[end.node] for end in each]
        key = (graph.form, *numbers)
        lowest = self._ends.get(key)
        if lowest is None:
            lowest = self._ends[key] = graph.lowest(set(numbers))
        return [end for end, number in zip(each, numbers, strict=True) if number in lowest]

    def _audit(
        self, key: tuple[object, ...], losses: Tensor, layout: ClassLayout, graph: Graph, calls: Calls
    ) -> frozenset[int]:
        """Return the numbers of the calls behind which examples are mixed, though no layer type tells.

        To look for that costs backward passes, so it is done once for each form of graph. Where a probe was not
        conclusive it is made again: at the next steps, then at ever fewer of them. Where rows are taken by number, or
        mixed within classes, it is made at every step until it finds mixing.
        """
        if not calls or layout.make_up.largest == layout.examples:  # of one class, whatever others are declared
            return frozenset()
        if key in self._mixers:
            return self._mixers[key]
        steps = self._doubtful[key] = self._doubtful.get(key, 0) + 1
        if _recording(losses) or (steps > _PROBES and steps & (steps - 1)):
            return frozenset()
        found = probe(losses, layout, calls)
        if found.mixers:  # nor are those to be trusted then that may mix and did not feel it
            del self._doubtful[key]
            within = probe(losses, _groups(losses), calls).mixers
            all_of_them = frozenset(range(len(calls)))
            self._mixers[key] = all_of_them if graph.reorders(layout.examples) else found.mixers | found.numb | within
            self._named[key] = max(found.mixers)
            return self._mixers[key]
        if found.conclusive:
            del self._doubtful[key]
            if not (graph.reorders(layout.examples) or self._mixes_within(key, losses, calls)):
                self._mixers[key] = found.mixers
        return found.mixers

    def _mixes_within(self, key: tuple[object, ...], losses: Tensor, calls: Calls) -> bool:
        """Whether examples of a class are mixed, which other labels of the next batch would make one of classes."""
        if key not in self._within:
            self._within[key] = bool(probe(losses, _groups(losses), calls).mixers)
        return self._within[key]

    def _places(
        self,
        key: tuple[object, ...],
        losses: Tensor,
        layout: ClassLayout,
        graph: Graph,
        calls: Calls,
        parameters: Sequence[nn.Parameter],
        mixed: bool,
    ) -> Places:
        """Return where parameters without a rule come to the examples, if no examples are mixed from there on.

        Probed until that is sure, and where nothing came to a place until something does: at every step, so that a run
        that is taken up again goes the same way.
        """
        if any(p._backward_hooks for p in parameters):
            return NO_PLACES  # hooks are to be run on class gradients
        examples, layers = layout.examples, {each.node for each in calls}
        alike = layout.make_up.largest == examples  # of one class, whose rows all rows are
        if not alike and (mixed or key not in self._mixers) and graph.reorders(examples):
            return NO_PLACES
        found, choices = None, self._choices.get(key)
        recording = _recording(losses)
        if choices is not None and not (choices.silent and (recording or speaks_up(losses, graph, choices.silent))):
            found = places_of(graph, choices.places, parameters, layers, examples)
        if found is None and (alike or not recording):
            choices = choose_places(losses, graph, parameters, examples, alike)
            found = places_of(graph, choices.places, parameters, layers, examples)
            if choices.sure and not alike:
                self._choices[key] = choices
        return NO_PLACES if found is None else found

    def _warn(self, finding: str, classes: int) -> None:
        if finding in self._warned:
            return
        self._warned.add(finding)
        warnings.warn(
            f"{finding}, so class gradients take one backward pass per class ({classes} instead of 1); "
            "classgrad.models.to_group_norm(model) replaces batch by group normalization.",
            stacklevel=_level_outside(),
        )


def _recording(losses: Tensor) -> bool:
    return losses.is_cuda and torch.cuda.is_current_stream_capturing()


def _groups(losses: Tensor) -> ClassLayout:
    index = torch.randint(_GROUPS, losses.shape, generator=torch.Generator().manual_seed(0))
    return ClassLayout(torch.arange(_GROUPS, device=losses.device), index.to(losses.device))


def _level_outside() -> int:
    """Return how far up, from the caller on, the code is that neither is this package's nor torch's."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and _package(frame) in ("classgrad", "torch"):
        frame, level = frame.f_back, level + 1
    return level


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]


def _has_rule(module: nn.Module) -> bool:
    return will_have_rule(module) and any(True for _ in module.parameters(recurse=False))

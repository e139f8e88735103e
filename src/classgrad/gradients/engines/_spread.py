"""Parameters that all examples share until an operation spreads them: class tokens, positions, scales of channels.

The gradient behind that operation has a row per example, so one backward pass tells the class gradients of what is
spread. A pass per class is left for what comes before it, which is little: a look-up in a table, or nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from classgrad.gradients._layout import ClassLayout
from classgrad.gradients.engines._graph import Graph, by_node
from classgrad.gradients.engines._joint import gradients_of, kept_terms
from classgrad.gradients.terms._terms import Memory, Term, promote


class Place(NamedTuple):
    """Where something is spread over the examples."""

    node: Any
    """The operation."""
    slot: int
    """Which of its inputs is spread."""

    @property
    def edge(self) -> GradientEdge:
        """Where the gradient of what it makes arrives."""
        return GradientEdge(self.node, 0)

    @property
    def shape(self) -> torch.Size:
        """Shape of what it makes."""
        return torch.Size(_made(self.node, 0).shape)

    @property
    def source(self) -> tuple[Any, int]:
        """The node that made what is spread, and as which of its results."""
        node, number = self.node.next_functions[self.slot]
        return node, number

    def class_gradients(self, gradient: Tensor, layout: ClassLayout) -> Tensor:
        """Return those of what is spread, (L, ...), from the gradient of what the operation makes."""
        if self.node.name() == "MulBackward0":
            gradient = gradient * (self.node._saved_other if self.slot == 0 else self.node._saved_self)
        given = _made(*self.source)
        each = [1] * (gradient.dim() - len(given.shape)) + list(given.shape)
        spread = [d for d in range(1, gradient.dim()) if each[d] == 1 and gradient.shape[d] != 1]
        summed = gradient.sum(spread, keepdim=True) if spread else gradient
        return layout.sum(promote(summed)).reshape(len(layout), *given.shape).to(given.dtype)


def spread_of(graph: Graph, parameters: Sequence[nn.Parameter], examples: int) -> list[Place]:
    """Return the places by which all that the losses learn of these parameters comes; nothing if there are others."""
    nodes = list(graph.nodes)
    children = by_node(graph.edges)
    parents: list[set[int]] = [set() for _ in nodes]
    for number, below in enumerate(children):
        for child in below:
            if child >= 0:
                parents[child].add(number)
    wanted = {id(p) for p in parameters}
    waiting = [n for n, node in enumerate(nodes) if id(getattr(node, "variable", None)) in wanted]
    met, found = set(waiting), {}
    for number in waiting:
        if not parents[number]:
            return []  # the losses
        for parent in parents[number]:
            for slot, child in enumerate(children[parent]):
                if child != number:
                    continue
                place = Place(nodes[parent], slot)
                if _spreads(place, examples):
                    found[parent] = place
                elif parent not in met:
                    met.add(parent)
                    waiting.append(parent)
    # What came by one place and then by another would be counted twice.
    below = [graph.nodes[place.source[0]] for place in found.values()]
    seen = set(below)
    for number in below:
        new = {child for child in children[number] if child >= 0} - seen
        seen |= new
        below.extend(new)
    return [] if seen.intersection(found) else list(found.values())


def spread_terms(
    losses: Tensor,
    layout: ClassLayout,
    parameters: Sequence[nn.Parameter],
    places: Sequence[Place],
    seed: Tensor | float,
    memory: Memory,
) -> dict[nn.Parameter, Term]:
    """Return ``seed`` times the class gradients of parameters that come by these places, all kept."""
    return kept_terms(_passes(losses, layout, parameters, places, seed), layout, parameters, memory)


def _passes(
    losses: Tensor,
    layout: ClassLayout,
    parameters: Sequence[nn.Parameter],
    places: Sequence[Place],
    seed: Tensor | float,
) -> Iterator[list[Tensor | None]]:
    gradients = gradients_of(losses, [place.edge for place in places], torch.ones_like(losses) * seed, True)
    spread: dict[tuple[Any, int], Tensor] = {}
    for place, gradient in zip(places, gradients, strict=True):
        if gradient is not None:
            found = place.class_gradients(gradient.to_dense(), layout)
            spread[place.source] = spread[place.source] + found if place.source in spread else found
    leaves = {id(node.variable): each for (node, _), each in spread.items() if hasattr(node, "variable")}
    made = {GradientEdge(*source): each for source, each in spread.items() if not hasattr(source[0], "variable")}
    before: tuple[Tensor | None, ...] = (None,) * len(parameters)
    for position, size in enumerate(layout.sizes):
        if not size:
            yield [None] * len(parameters)
            continue
        if made:
            given = [each[position] for each in made.values()]
            before = torch.autograd.grad(list(made), list(parameters), given, retain_graph=True, allow_unused=True)
        direct = [leaves[id(p)][position] if id(p) in leaves else None for p in parameters]
        yield [_added(a, b) for a, b in zip(before, direct, strict=True)]


def _added(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None or b is None:
        return b if a is None else a.to_dense()
    return a.to_dense() + b


def _spreads(place: Place, examples: int) -> bool:
    """Whether the operation gives each example the same of this input, and the gradient of that is known here."""
    name = place.node.name()
    if name not in ("AddBackward0", "ExpandBackward0", "MulBackward0"):
        return False
    made, given = _made(place.node, 0), _made(*place.source)
    if made is None or given is None or made.is_nested_tensor or made.dtype.is_complex or given.dtype.is_complex:
        return False
    if name == "AddBackward0" and place.slot == 1 and place.node._saved_alpha != 1:
        return False
    shape, source = tuple(made.shape), tuple(given.shape)
    return len(shape) > 0 and shape[0] == examples > 1 and (len(source) < len(shape) or source[0] == 1)


def _made(node: Any, number: int) -> Any:
    """Return type and shape of what an operation makes, None if it does not tell."""
    told = getattr(node, "_input_metadata", None)
    return told[number] if told else None

"""Parameters that all examples share until an operation spreads them: class tokens, positions, scales of channels.

The gradient behind that operation has a row per example, so one backward pass tells the class gradients of what is
spread. A pass per class is left for what comes before it, which is little: a look-up in a table, or nothing.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from classgrad.gradients._layout import ClassLayout
from classgrad.gradients.engines._graph import Graph, by_node, is_leaf
from classgrad.gradients.engines._joint import gradients_of, kept_terms
from classgrad.gradients.terms._terms import Memory, Term


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
        return layout.sum(summed).reshape(len(layout), *given.shape).to(given.dtype)


def spread_of(graph: Graph, parameters: Sequence[nn.Parameter], examples: int) -> list[Place]:
    """Return the places by which all that the losses learn of these parameters comes; nothing if there are others."""
    children = by_node(graph.edges)
    places = _first_met(graph, children, {id(p) for p in parameters}, examples)
    return [] if _behind_another(places, graph, children) else places


def _first_met(graph: Graph, children: Sequence[Sequence[int]], wanted: Container[int], examples: int) -> list[Place]:
    """Return the first places on all ways from the parameters to the losses, nothing if there is a way without."""
    nodes = list(graph.nodes)
    parents: list[set[int]] = [set() for _ in nodes]
    for number, below in enumerate(children):
        for child in below:
            if child >= 0:
                parents[child].add(number)
    waiting = [n for n, node in enumerate(nodes) if is_leaf(node) and id(node.variable) in wanted]
    met, found = set(waiting), {}
    for number in waiting:
        if not parents[number]:
            return []  # the losses
        for parent in parents[number]:
            for slot in (slot for slot, child in enumerate(children[parent]) if child == number):
                place = Place(nodes[parent], slot)
                if _spreads(place, examples):
                    found[parent] = place
                elif parent not in met:
                    met.add(parent)
                    waiting.append(parent)
    return list(found.values())


def _behind_another(places: Sequence[Place], graph: Graph, children: Sequence[Sequence[int]]) -> bool:
    """Whether what one place spreads was made of what another spread: that would be counted twice."""
    waiting = [graph.nodes[place.source[0]] for place in places]
    met = set(waiting)
    for number in waiting:
        new = {child for child in children[number] if child >= 0} - met
        met |= new
        waiting.extend(new)
    return any(graph.nodes[place.node] in met for place in places)


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
    leaves = {id(node.variable): each for (node, _), each in spread.items() if is_leaf(node)}
    made = {GradientEdge(*source): each for source, each in spread.items() if not is_leaf(source[0])}
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

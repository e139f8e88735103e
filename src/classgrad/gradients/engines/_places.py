"""Where parameters without a rule come to the examples, and which rows of what comes back are those of an example.

Behind such an operation every example has rows of its own, so the one backward pass tells the class gradients of what
went into it. A pass per class is left for what that was made of, which is little: a weight's norm, a look-up, or
nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from classgrad.gradients._layout import ClassLayout
from classgrad.gradients.engines._graph import Graph, by_node, is_leaf
from classgrad.gradients.engines._joint import gradients_of
from classgrad.gradients.engines._operations import Rows, Use, use_of
from classgrad.gradients.terms._terms import Memory, Term


@dataclass
class Place:
    """An operation by which a parameter, or something made of parameters alone, comes to the examples."""

    node: Any
    slot: int
    use: Use
    rows: Rows

    def __post_init__(self) -> None:
        source, _ = self.source
        turned = False
        while (turns := _seen_through(source)) is not None:
            turned ^= turns
            source = source.next_functions[0][0]
        self.parameter: nn.Parameter | None = None
        """The one that comes here, but for its form, if it is a single one."""
        if is_leaf(source) and source.variable.device == self.use.made.device and (self.use.turns or not turned):
            self.parameter = source.variable
        self._turned = turned and self.parameter is not None

    @property
    def source(self) -> tuple[Any, int]:
        """The node that made what comes here, and as which of its results."""
        node, number = self.node.next_functions[self.slot]
        return node, number

    @property
    def edge(self) -> GradientEdge:
        """Where the gradient of what the operation makes arrives."""
        return GradientEdge(self.node, 0)

    def term(self, b: Tensor, layout: ClassLayout, memory: Memory) -> Term:
        """Return the class gradients of the parameter, or of what was made of several."""
        return self.use.term(b, self.rows, self._turned, layout, memory)


def _seen_through(node: Any) -> bool | None:
    """Whether what an operation makes is the transpose of a matrix, False if the same in another number format."""
    name = node.name()
    if name == "ToCopyBackward0":
        return False
    if name == "TBackward0":
        return True
    dims: tuple[int, ...] = ()
    if name == "PermuteBackward0":
        dims = node._saved_dims
    elif name == "TransposeBackward0" and len(node._input_metadata[0].shape) == 2:
        dims = (node._saved_dim0, node._saved_dim1)
    if len(dims) != 2:
        return None
    first, second = (d % 2 for d in dims)  # those from the end come as very large numbers, even and odd as they were
    return bool(first > second if name == "PermuteBackward0" else first != second)


class Choice(NamedTuple):
    """A place by its numbers in a graph of some form, which hold for all graphs of that form."""

    node: int
    slot: int
    rows: Rows


class Choices(NamedTuple):
    """What was found out about graphs of some form."""

    places: Sequence[Choice]
    """All ways from some parameters to the losses lead by these; nothing if there are others."""
    silent: Sequence[Choice] = ()
    """Those to which nothing came, so that it is not known whose rows are whose there."""
    sure: bool = True
    """Whether it is at all others."""


class Places(NamedTuple):
    """All ways from some parameters to the losses lead by these."""

    each: Sequence[Place] = ()
    below: Sequence[nn.Parameter] = ()
    """The parameters of which something was made before it came to a place."""
    tangled: bool = False
    """Whether a backward pass that stops at places and layers goes through what that was made with."""

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Those that come to a place by themselves, as often as they do."""
        return [place.parameter for place in self.each if place.parameter is not None]

    @property
    def held(self) -> int:
        """Bytes that class gradients of what was made of parameters take for each class, and of these then."""
        made = [place.use.given for place in self.each if place.parameter is None]
        bytes_made = sum(given.shape.numel() * given.dtype.itemsize for given in made)
        return bytes_made + sum(p.numel() * p.element_size() for p in self.below)


NO_PLACES = Places()


def places_of(
    graph: Graph,
    choices: Sequence[Choice],
    parameters: Sequence[nn.Parameter],
    layers: Container[Any],
    examples: int,
) -> Places | None:
    """Return the chosen places of a graph, None if they were chosen for other parameters or other kinds of tensors.

    ``layers`` are the nodes of those with a rule.
    """
    if not choices:
        return NO_PLACES
    nodes = list(graph.nodes)
    each = []
    for number, slot, rows in choices:
        use = use_of(nodes[number], slot)
        if use is None or rows not in use.rows(examples) or not use.read():
            return None
        each.append(Place(nodes[number], slot, use, rows))
    made = [graph.nodes[place.source[0]] for place in each if place.parameter is None]
    met = [nodes[number] for number in _closure(made, by_node(graph.edges))] if made else []
    leaves = {id(node.variable) for node in met if is_leaf(node)}
    found = Places(each, [p for p in parameters if id(p) in leaves], any(node in layers for node in met))
    all_of_them = {id(p) for p in (*found.parameters, *found.below)} == {id(p) for p in parameters}
    return found if all_of_them else None


def choose_places(
    losses: Tensor, graph: Graph, parameters: Sequence[nn.Parameter], examples: int, alike: bool
) -> Choices:
    """Return the first places on all ways from the parameters to the losses.

    Losses of some examples and not of others are sent back: behind a place no other rows may feel them. Where all
    examples are ``alike``, being of one class, that need not be known.
    """
    children = by_node(graph.edges)
    wanted, refused = {id(p) for p in parameters}, set[tuple[int, int]]()
    while found := _first_met(graph, children, wanted, examples, refused):
        ways = []
        for (node, slot), use in found.items():
            dense = use.read()
            if dense and not use.kept:
                return Choices([])  # a checkpoint would run its layers again for each of them
            ways.append(Way(graph.nodes[node], slot, node, use, use.rows(examples) if dense else []))
        felt = [True] * len(ways) if alike else _probe(losses, ways, examples)
        unfit = {(way.number, way.slot) for way in ways if not way.rows}
        if not unfit:
            chosen = [Choice(way.number, way.slot, way.rows[0]) for way in ways]
            if _behind_another(chosen, graph, children):
                return Choices([])
            silent = [choice for choice, feels in zip(chosen, felt, strict=True) if feels is None]
            return Choices(chosen, silent, False not in felt and bool(losses.isfinite().all()))
        refused |= unfit
    return Choices([])


def speaks_up(losses: Tensor, graph: Graph, silent: Sequence[Choice]) -> bool:
    """Whether anything comes to a place to which nothing came before."""
    nodes = list(graph.nodes)
    edges = [GradientEdge(nodes[number], 0) for number, *_ in silent]
    gradients = gradients_of(losses, edges, torch.ones_like(losses), retain_graph=True)
    return any(gradient is not None and bool(gradient.to_dense().any()) for gradient in gradients)


def _first_met(
    graph: Graph,
    children: Sequence[Sequence[int]],
    wanted: Container[int],
    examples: int,
    refused: Collection[tuple[int, int]],
) -> dict[tuple[Any, int], Use]:
    """Return the first operations on all ways up from the parameters that may be places; nothing if a way has none."""
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
            return {}  # the losses
        for parent in parents[number]:
            for slot in (slot for slot, child in enumerate(children[parent]) if child == number):
                use = None if (parent, slot) in refused else use_of(nodes[parent], slot)
                if use is not None and use.rows(examples):
                    found[nodes[parent], slot] = use
                elif parent not in met:
                    met.add(parent)
                    waiting.append(parent)
    return found


class Way(NamedTuple):
    """An operation that may be a place."""

    number: int
    slot: int
    node: Any
    use: Use
    rows: list[Rows]
    """Where in its gradient the examples may be; the others are struck out."""


def _probe(losses: Tensor, ways: Sequence[Way], examples: int) -> list[bool | None]:
    """Strike out where the examples are not, and say for each if what is left is sure, None if nothing came to it.

    Two sets of examples for each binary digit of an example's number tell every example from every other.
    """
    numbers = torch.arange(examples, device=losses.device)
    felt: list[dict[Rows, Tensor]] = [{} for _ in ways]
    edges = [GradientEdge(way.node, 0) for way in ways]
    for digit in range((examples - 1).bit_length()):
        for side in (0, 1):
            chosen = (numbers >> digit) % 2 == side
            gradients = gradients_of(losses, edges, chosen.to(losses.dtype), retain_graph=True)
            for gradient, way, known in zip(gradients, ways, felt, strict=True):
                if gradient is None:
                    continue
                faced = way.use.faced(gradient.to_dense())
                for rows in tuple(way.rows):
                    feels = _feels(rows.of(faced, examples))
                    known[rows] = known[rows] | feels if rows in known else feels
                    if bool(feels[~chosen].any()):
                        way.rows.remove(rows)
    return [_sure(way.rows, known) for way, known in zip(ways, felt, strict=True)]


def _sure(left: Sequence[Rows], felt: Mapping[Rows, Tensor]) -> bool | None:
    """Where several are left, all of the examples must have felt something for the first of them to be the one."""
    if not left:
        return True
    feels = felt.get(left[0])
    if feels is None or not bool(feels.any()):
        return None
    return len(left) == 1 or bool(feels.all())


def _feels(gradient: Tensor) -> Tensor:
    """Return which examples anything came to; one that is not finite gives NaN for a loss that was not asked for."""
    return ((gradient != 0) & gradient.isfinite()).flatten(1).any(1)


def _behind_another(chosen: Sequence[Choice], graph: Graph, children: Sequence[Sequence[int]]) -> bool:
    """Whether what comes to one place was made of what came to another: that would be counted twice."""
    nodes = list(graph.nodes)
    sources = [graph.nodes[nodes[number].next_functions[slot][0]] for number, slot, _ in chosen]
    met = _closure(sources, children)
    return any(number in met for number, *_ in chosen)


def _closure(numbers: Iterable[int], children: Sequence[Sequence[int]]) -> set[int]:
    """Return the numbers of these nodes and of all that are below them."""
    waiting = list(numbers)
    met = set(waiting)
    for number in waiting:
        new = {child for child in children[number] if child >= 0} - met
        met |= new
        waiting.extend(new)
    return met

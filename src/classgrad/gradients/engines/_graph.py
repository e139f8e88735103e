"""What the autograd graph of a step's losses says about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from classgrad._errors import InputError
from classgrad.gradients.layers._taps import MARKED

_PASSES_ON = frozenset(
    f"{name}Backward0"
    for name in (
        *("Alias", "AsStrided", "Clone", "Expand", "Permute", "Repeat", "Reshape", "ReshapeAlias", "Select", "Slice"),
        *("Squeeze", "T", "ToCopy", "Transpose", "Unsqueeze", "UnsafeView", "View"),
    )
)
"""Operations that hand on what they are given in another form: who uses the result uses that."""

_BY_NUMBER = frozenset(
    f"{name}Backward0"
    for name in ("Gather", "Index", "IndexAdd", "IndexCopy", "IndexPut", "IndexSelect", "Scatter", "ScatterAdd")
)
"""Operations that take or place rows by numbers they are given, which may be others at every step."""

_END = -2


@dataclass(frozen=True)
class Graph:
    """The operations behind the losses; holds them alive, so it must not outlive the step."""

    nodes: dict[Any, int]
    """Every node with its number, in the order in which they are met from the losses down."""
    edges: list[int]
    """The numbers of the nodes that each passes gradients to, -1 for none, with ``_END`` behind those of each."""
    form: int
    """Equal for two graphs of the same operations on the same pattern of edges."""
    uses: Counter[int]
    """How many operations use each parameter, by its id; transposes and casts of it are seen through."""
    marked: list[Any]
    """The nodes of types that hold the calls of layers."""

    def lowest(self, chosen: Container[int]) -> set[int]:
        """Return those of the chosen nodes below which there is no other: passing through them passes through all."""
        edges = by_node(self.edges)
        waiting = Counter(child for children in edges for child in children)
        order = [0] if edges else []
        for number in order:  # parents before children
            for child in edges[number]:
                waiting[child] -= 1
                if child >= 0 and not waiting[child]:
                    order.append(child)
        above: set[int] = set()
        for number in reversed(order):
            if any(child in above or child in chosen for child in edges[number]):
                above.add(number)
        return {number for number in order if number in chosen and number not in above}

    def reorders(self, examples: int) -> bool:
        """Whether an operation takes or places so many rows by their numbers, as routing to experts does.

        Which examples they then are is not told by the graph: a batch that is not mixed says nothing of the next. Rows
        of a parameter, such as the centers of classes, are no examples.
        """
        return any(
            node.name() in _BY_NUMBER and _rows_by_number(node) == examples and not _of_parameters(node)
            for node in self.nodes
        )


NO_GRAPH = Graph({}, [], 0, Counter(), [])
"""Of a step that had no need to read it."""


def read_graph(losses: Tensor, known: dict[int, list[tuple[int, int]]] | None = None) -> Graph:
    """Walk once through the graph of the losses; ``known`` remembers what follows from the form of a graph."""
    root = losses.grad_fn
    nodes: dict[Any, int] = {} if root is None else {root: 0}
    queue: list[Any] = list(nodes)
    edges: list[int] = []
    kinds: list[Any] = []
    marked: list[Any] = []
    number_of = nodes.get
    for node in queue:  # hot: at every step, for every operation
        kind = type(node)
        kinds.append(kind if kind in _NAMED or _named(node) else node.name())
        if kind in MARKED:
            marked.append(node)
        for child, _ in node.next_functions:
            number = -1 if child is None else number_of(child)
            if number is None:
                number = nodes[child] = len(queue)
                queue.append(child)
            edges.append(number)
        edges.append(_END)
    form = hash((tuple(kinds), tuple(edges)))
    users = None if known is None else known.get(form)
    if users is None:
        users = _users([node.name() for node in queue], by_node(edges))
        if known is not None:
            known[form] = users
    uses = Counter({id(losses): 1})
    for number, count in users:
        uses[id(queue[number].variable)] += count
    return Graph(nodes, edges, form, uses, marked)


def is_leaf(node: Any) -> bool:
    """Whether a node stands for a parameter, its ``variable``."""
    name: str = node.name()
    return name.endswith("AccumulateGrad")


def _of_parameters(node: Any) -> bool:
    """Whether all that an operation passes gradients to are parameters."""
    return all(child is None or is_leaf(child) for child, _ in node.next_functions)


def _rows_by_number(node: Any) -> int:
    """Return how many rows of the first dimension an operation takes or places by numbers for these alone, else 0."""
    if hasattr(node, "_saved_indices"):
        numbers, *others = node._saved_indices
        by_rows = numbers is not None and all(other is None for other in others)
    else:
        numbers, by_rows = node._saved_index, node._saved_dim == 0
    return len(numbers) if by_rows and numbers.dim() and numbers.dtype != torch.bool else 0


_NAMED: set[type] = set()
"""Types of nodes that are known to stand for one operation each, so that its name need not be asked for."""


def _named(node: Any) -> bool:
    if node.name().endswith(type(node).__name__):
        _NAMED.add(type(node))
    return type(node) in _NAMED


def by_node(edges: list[int]) -> list[list[int]]:
    """Return the edges of each node by themselves."""
    found: list[list[int]] = []
    children: list[int] = []
    for number in edges:
        if number == _END:
            found.append(children)
            children = []
        else:
            children.append(number)
    return found


def _users(names: list[str], edges: list[list[int]]) -> list[tuple[int, int]]:
    """Return the leaves of a graph, each with the number of operations that use it."""
    if any("CheckpointFunction" in name for name in names):
        raise InputError(
            "Gradient checkpointing should use torch.utils.checkpoint with use_reentrant=False; the reentrant kind "
            "hides its layers from autograd."
        )
    parents: list[list[int]] = [[] for _ in names]
    for parent, children in enumerate(edges):
        for child in children:
            if child >= 0:
                parents[child].append(parent)

    def users(number: int) -> int:
        return sum(users(p) if names[p] in _PASSES_ON and parents[p] else 1 for p in parents[number])

    return [(number, users(number)) for number, name in enumerate(names) if name.endswith("AccumulateGrad")]

"""What the autograd graph of a step's losses says about it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from classgrad._errors import InputError

_PASSES_ON = frozenset({"TBackward0", "ToCopyBackward0", "PermuteBackward0", "TransposeBackward0"})


@dataclass(frozen=True)
class Graph:
    """The operations behind the losses; holds them alive, so it must not outlive the step."""

    nodes: dict[Any, int]
    """Every node with its number, in the order in which they are met from the losses down."""
    form: int
    """Equal for two graphs of the same operations on the same pattern of edges."""
    uses: Counter[int]
    """How many operations use each parameter, by its id; transposes and casts of it are seen through."""


NO_GRAPH = Graph({}, 0, Counter())
"""Of a step that had no need to read it."""


def read_graph(losses: Tensor) -> Graph:
    """Walk once through the graph of the losses."""
    root = losses.grad_fn
    nodes: dict[Any, int] = {} if root is None else {root: 0}
    queue: list[Any] = list(nodes)
    names: list[str] = []
    edges: list[list[int]] = []
    for node in queue:
        names.append(node.name())
        edges.append([_number(child, nodes, queue) for child, _ in node.next_functions])
    if any("CheckpointFunction" in name for name in names):
        raise InputError(
            "Gradient checkpointing should use torch.utils.checkpoint with use_reentrant=False; the reentrant kind "
            "hides its layers from autograd."
        )
    form = hash((tuple(names), tuple(map(tuple, edges))))
    return Graph(nodes, form, _uses(losses, queue, names, edges))


def _number(node: Any, nodes: dict[Any, int], queue: list[Any]) -> int:
    if node is None:
        return -1
    number = nodes.setdefault(node, len(nodes))
    if number == len(queue):
        queue.append(node)
    return number


def _uses(losses: Tensor, nodes: list[Any], names: list[str], edges: list[list[int]]) -> Counter[int]:
    parents: list[list[int]] = [[] for _ in nodes]
    for parent, children in enumerate(edges):
        for child in children:
            if child >= 0:
                parents[child].append(parent)

    def users(number: int) -> int:
        return sum(users(p) if names[p] in _PASSES_ON and parents[p] else 1 for p in parents[number])

    uses = Counter({id(losses): 1})
    for number, node in enumerate(nodes):
        if names[number].endswith("AccumulateGrad"):
            uses[id(node.variable)] += users(number)
    return uses

"""Whether the fused engine may be trusted on a graph, and for which parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge
from torch.nn.modules.batchnorm import _BatchNorm

from classgrad.gradients._layout import ClassLayout
from classgrad.gradients.engines._graph import Graph
from classgrad.gradients.engines._joint import gradients_of
from classgrad.gradients.layers._registry import LayerRule, rule_of
from classgrad.gradients.layers._taps import Call


class CoveredCall(NamedTuple):
    """A layer's call with the rule that applies to it."""

    node: Any
    """The node of the graph that holds it: its first gradient is that of the layer's output."""
    call: Call
    rule: LayerRule
    parameters: dict[str, nn.Parameter]
    """Those that learn from the call and that the rule knows, by name."""

    @property
    def edge(self) -> GradientEdge:
        """Where the gradient of the layer's output arrives."""
        return GradientEdge(self.node, 0)

    @property
    def shape(self) -> torch.Size:
        """Shape of the layer's output."""
        return self.call.shape


Calls = Sequence[CoveredCall]


def covered_calls(calls: Iterable[tuple[Any, Call]], examples: int) -> list[CoveredCall]:
    """Return the calls that a rule applies to."""
    out = []
    for node, call in calls:  # hot: at every step, for every layer
        rule = rule_of(call.module)
        if rule is not None and rule.applies(call, examples):
            # the rules know no conjugates
            known = call.parameters
            if any(n not in rule.parameters or p.is_complex() for n, p in known.items()):
                known = {n: p for n, p in known.items() if n in rule.parameters and not p.is_complex()}
            out.append(CoveredCall(node, call, rule, known))
    return out


def may_mix(model: nn.Module, declared: tuple[type[nn.Module], ...]) -> list[nn.Module]:
    """Return the layers that mix examples in some mode or other."""
    return [module for module in model.modules() if isinstance(module, (_BatchNorm, *declared))]


def mixing_layer(
    candidates: Iterable[nn.Module], names: dict[nn.Module, str], declared: tuple[type[nn.Module], ...]
) -> str | None:
    """Return the name of a candidate that mixes examples in its present mode, if there is one."""
    for module in candidates:
        statistics = isinstance(module, _BatchNorm) and (module.training or module.running_mean is None)
        if statistics or (declared and isinstance(module, declared)):
            return f"{names.get(module, '?')} ({type(module).__name__})"
    return None


def uncovered(graph: Graph, calls: Calls, parameters: Sequence[nn.Parameter]) -> frozenset[int]:
    """Return the ids of the parameters with a use that is no call of a layer with a rule, or with hooks to be run."""
    covered = uses_of(calls)
    return frozenset(id(p) for p in parameters if graph.uses[id(p)] > covered[id(p)] or p._backward_hooks)


def uses_of(calls: Calls) -> Counter[int]:
    """Return how many of the calls each parameter learns from, by its id."""
    return Counter([id(p) for each in calls for p in each.parameters.values()])


class Probe(NamedTuple):
    """What sending back the losses of some classes and not of others showed."""

    mixers: frozenset[int]
    """Numbers of the calls behind which examples are mixed, so that the rows of their outputs are not examples."""
    numb: frozenset[int]
    """Numbers of those that felt nothing: one behind weights of zero would not have felt mixing either."""
    conclusive: bool
    """Whether that is all there is to know."""


def probe(losses: Tensor, layout: ClassLayout, calls: Calls) -> Probe:
    """Send back the losses of some classes: no example of another class may feel it at any call.

    Two sets of classes for each binary digit of a class's position tell every class from every other, in both
    directions.
    """
    numb, mixers = set(range(len(calls))) if len(layout) > 1 else set[int](), set[int]()
    edges = [each.edge for each in calls]
    for digit in range((len(layout) - 1).bit_length() if calls else 0):
        for side in (0, 1):
            chosen = (layout.index >> digit) % 2 == side
            gradients = gradients_of(losses, edges, chosen.to(losses.dtype), retain_graph=True)
            for number, (each, gradient) in enumerate(zip(calls, gradients, strict=True)):
                if gradient is None or number in mixers:
                    continue
                examples = gradient.reshape(each.shape)
                if _felt(examples[~chosen]):
                    mixers.add(number)
                    numb.discard(number)
                elif number in numb and _felt(examples[chosen]):
                    numb.remove(number)
    return Probe(frozenset(mixers), frozenset(numb), not numb and bool(losses.isfinite().all()))


def _felt(gradient: Tensor) -> bool:
    """Whether anything came; an example that is not finite gives NaN for a loss that was not even asked for."""
    return bool(((gradient != 0) & gradient.isfinite()).any())

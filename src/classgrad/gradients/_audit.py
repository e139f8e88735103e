"""Whether the fused engine may be trusted on a graph, and for which parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from torch import Tensor, nn
from torch.autograd.graph import GradientEdge
from torch.nn.modules.batchnorm import _BatchNorm

from classgrad.gradients._graph import Graph
from classgrad.gradients._joint import gradients_of
from classgrad.gradients._layout import ClassLayout
from classgrad.gradients._registry import rule_of
from classgrad.gradients._taps import Call

Calls = Sequence[tuple[GradientEdge, Call]]


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
    covered = Counter(id(p) for _, call in calls for p in covered_parameters(call).values())
    return frozenset(id(p) for p in parameters if graph.uses[id(p)] > covered[id(p)] or p._backward_hooks)


def covered_parameters(call: Call) -> dict[str, nn.Parameter]:
    """Return the parameters that learn from a layer's call and that its rule knows, by name."""
    rule = rule_of(call.module)
    return {name: p for name, p in call.parameters.items() if rule is not None and name in rule.parameters}


def mixed_behind(losses: Tensor, layout: ClassLayout, calls: Calls, names: dict[nn.Module, str]) -> str | None:
    """Return the name of a layer behind which examples are mixed, so that rows of its output are not examples.

    The losses of some classes are sent back; no example of another class may feel it at any layer. Two sets of classes
    for each binary digit of a class's position tell every class from every other, in both directions.
    """
    edges = [edge for edge, _ in calls]
    for digit in range((len(layout) - 1).bit_length() if calls else 0):
        for side in (0, 1):
            chosen = (layout.index >> digit) % 2 == side
            gradients = gradients_of(losses, edges, chosen.to(losses.dtype), retain_graph=True)
            for (_, call), gradient in reversed(list(zip(calls, gradients, strict=True))):
                if gradient is not None and _felt(gradient[~chosen]):
                    return f"{names[call.module]} ({type(call.module).__name__})"
    return None


def _felt(gradient: Tensor) -> bool:
    """Whether anything came; an example that is not finite gives NaN for a loss that was not even asked for."""
    return bool(((gradient != 0) & gradient.isfinite()).any())

"""Whether the fused engine may be trusted on a graph, and for which parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import GradientEdge
from torch.nn.modules.batchnorm import _BatchNorm

from classgrad._errors import InputError
from classgrad.gradients._capture import Call
from classgrad.gradients._joint import gradients_of
from classgrad.gradients._layout import ClassLayout
from classgrad.gradients._registry import rule_of

_PASSES_ON = frozenset({"TBackward0", "ToCopyBackward0", "PermuteBackward0", "TransposeBackward0"})


@dataclass(frozen=True)
class Plan:
    """What an audit found: which parameters have to fall back, and what mixes examples."""

    rest: frozenset[int]
    """Ids of parameters with a use that no layer rule covers."""
    mixer: str | None
    """The name of a layer behind which examples are mixed."""


def mixing_layer(model: nn.Module, names: dict[nn.Module, str], declared: tuple[type[nn.Module], ...]) -> str | None:
    """Return the name of a layer known to mix examples in its present mode, if there is one."""
    for module in model.modules():
        statistics = isinstance(module, _BatchNorm) and (module.training or module.running_mean is None)
        if statistics or (declared and isinstance(module, declared)):
            return f"{names.get(module, '?')} ({type(module).__name__})"
    return None


def audit(
    losses: Tensor,
    layout: ClassLayout,
    calls: Sequence[tuple[GradientEdge, Call]],
    parameters: Sequence[nn.Parameter],
    names: dict[nn.Module, str],
) -> Plan:
    """Look through the graph once; costs one extra backward pass.

    ``calls`` are those a layer rule applies to. Two things are checked that no layer type can tell: that a layer's
    parameters are used nowhere else in the graph, and that the output gradient of an example comes, at every layer,
    from its own class alone.
    """
    uses = _uses(losses)
    covered = Counter(id(p) for _, call in calls for p in covered_parameters(call.module).values())
    rest = frozenset(id(p) for p in parameters if uses[id(p)] > covered[id(p)])
    return Plan(rest, _mixed(losses, layout, calls, names))


def covered_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the module's own parameters that its layer rule knows, by name."""
    rule = rule_of(module)
    own = ((name, module._parameters.get(name)) for name in (rule.parameters if rule else ()))
    return {name: parameter for name, parameter in own if parameter is not None}


def _uses(losses: Tensor) -> Counter[int]:
    """Count how many operations of the graph use each parameter, seeing through transposes and casts of it."""
    consumers: dict[Any, int] = {}
    edges: list[tuple[Any, Any]] = []
    seen = {losses.grad_fn}
    queue: list[Any] = [losses.grad_fn]
    while queue:
        node = queue.pop()
        if "CheckpointFunction" in node.name():
            raise InputError(
                "Gradient checkpointing should use torch.utils.checkpoint with use_reentrant=False; the reentrant kind "
                "hides its layers from autograd."
            )
        for child, _ in node.next_functions:
            if child is None:
                continue
            consumers[child] = consumers.get(child, 0) + 1
            edges.append((node, child))
            if child not in seen:
                seen.add(child)
                queue.append(child)
    uses: Counter[int] = Counter()
    for node, child in edges:
        if hasattr(child, "variable"):
            uses[id(child.variable)] += consumers.get(node, 1) if node.name() in _PASSES_ON else 1
    return uses


def _mixed(
    losses: Tensor, layout: ClassLayout, calls: Sequence[tuple[GradientEdge, Call]], names: dict[nn.Module, str]
) -> str | None:
    """Send the losses of half of the classes back; no example of another class may feel it at any layer."""
    if len(layout) < 2 or not calls:
        return None
    chosen = layout.index % 2 == 0
    gradients = gradients_of(losses, [edge for edge, _ in calls], chosen.to(losses.dtype), retain_graph=True)
    for (_, call), gradient in reversed(list(zip(calls, gradients, strict=True))):
        if gradient is not None and bool((gradient[~chosen] != 0).any()):
            return f"{names[call.module]} ({type(call.module).__name__})"
    return None

"""The choice of engine for a graph, with everything that must be remembered between steps."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Literal

from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from classgrad.gradients._audit import Plan, audit, mixing_layer
from classgrad.gradients._capture import Call, Capture
from classgrad.gradients._combine import Terms
from classgrad.gradients._fused import fused_terms
from classgrad.gradients._joint import joint_terms
from classgrad.gradients._layout import ClassLayout
from classgrad.gradients._registry import rule_of
from classgrad.gradients._terms import Memory

Engine = Literal["auto", "fused", "joint", "split"]


class Engines:
    """Makes class gradients of a model's losses, by the fused engine where it is exact and by ``joint`` elsewhere."""

    def __init__(self, model: nn.Module, engine: Engine, max_memory: int, mixing: Sequence[type[nn.Module]]) -> None:
        self.model = model
        self.engine = engine
        self.max_memory = max_memory
        self.mixing = tuple(mixing)
        self.names: dict[nn.Module, str] = {module: name or "the model" for name, module in model.named_modules()}
        self._plans: dict[Any, Plan] = {}
        self._warned: set[str] = set()
        self._capture = None if engine in ("joint", "split") else Capture(model, _has_rule, _free_output)

    def close(self) -> None:
        """Remove the hooks."""
        if self._capture is not None:
            self._capture.close()

    @property
    def closed(self) -> bool:
        """Whether the hooks are gone."""
        return self._capture is not None and self._capture.closed

    def take(self, examples: int) -> list[tuple[GradientEdge, Call]]:
        """Return the layer calls of the forward passes since the last step that a rule applies to."""
        pairs = self._capture.take() if self._capture is not None else []
        return [(edge, call) for edge, call in pairs if _applies(call, examples)]

    def terms(
        self,
        losses: Tensor,
        layout: ClassLayout,
        calls: list[tuple[GradientEdge, Call]],
        parameters: Sequence[nn.Parameter],
        seed: Tensor | float,
        keep_graph: bool = False,
    ) -> Terms:
        """Return ``seed`` times the sums of the example gradients of each class."""
        memory = Memory(self.max_memory)
        plan = self.plan(losses, layout, calls, parameters)
        if plan is None:
            return joint_terms(losses, layout, parameters, seed, memory, keep_graph)
        return fused_terms(losses, layout, calls, parameters, plan.rest, self.names, seed, memory, keep_graph)

    def plan(
        self,
        losses: Tensor,
        layout: ClassLayout,
        calls: list[tuple[GradientEdge, Call]],
        parameters: Sequence[nn.Parameter],
    ) -> Plan | None:
        """Return what the fused engine may do on this graph, or None if the step needs ``joint``."""
        if self._capture is None:
            return None
        mixer = mixing_layer(self.model, self.names, self.mixing)
        if mixer is not None:
            self._warn(f"Layer {mixer} mixes the examples of a batch", len(layout))
            return None
        key = (tuple(id(call.module) for _, call in calls), tuple(map(id, parameters)), len(layout) > 1)
        if key not in self._plans:
            self._plans[key] = audit(losses, layout, calls, parameters, self.names)
        plan = self._plans[key]
        if plan.mixer is not None:
            self._warn(f"Something after layer {plan.mixer} mixes the examples of a batch", len(layout))
            return None
        return plan

    def _warn(self, finding: str, classes: int) -> None:
        if finding in self._warned:
            return
        self._warned.add(finding)
        warnings.warn(
            f"{finding}, so class gradients take one backward pass per class ({classes} instead of 1); "
            "classgrad.models.to_group_norm(model) replaces batch by group normalization.",
            stacklevel=5,
        )


def _has_rule(module: nn.Module) -> bool:
    return rule_of(module) is not None and any(True for _ in module.parameters(recurse=False))


def _free_output(module: nn.Module) -> bool:
    rule = rule_of(module)
    return rule is not None and not rule.saves_output


def _applies(call: Call, examples: int) -> bool:
    rule = rule_of(call.module)
    return rule is not None and rule.applies(call, examples)

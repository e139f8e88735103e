"""The class gradients themselves, and how far an engine's are from those of one backward pass per class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from classgrad._errors import InputError
from classgrad.gradients._accumulate import Accumulator
from classgrad.gradients._basis import Basis
from classgrad.gradients._combine import class_losses
from classgrad.gradients._layout import ClassLayout
from classgrad.gradients._select import class_parts, select
from classgrad.gradients._table import GradientTable, Verification, relative_errors
from classgrad.gradients.engines._joint import joint_terms
from classgrad.gradients.terms._terms import Memory


def gradient_table(basis: Basis, losses: Tensor, y: Tensor | ClassLayout) -> GradientTable:
    """Return all class gradients of a batch."""
    layout = basis.enter(losses, y)
    parameters = basis.parameters
    needed = len(layout) * sum(p.numel() * p.element_size() for p in parameters)
    if needed > basis.max_memory:
        raise InputError(
            f"Parameter `max_memory` should allow for the {needed} bytes of {len(layout)} class gradients. "
            f"Found {basis.max_memory}."
        )
    with basis.graph(losses) as graph:
        plan = basis.engines.plan(losses, layout, graph, parameters)
        terms = basis.engines.terms(losses, layout, plan, parameters, 1 / max(1, layout.examples))
        named = {
            name: terms[p].dense(0, len(layout)) if p in terms else p.new_zeros(len(layout), *p.shape)
            for name, p in basis.model.named_parameters()
            if p.requires_grad
        }
    return GradientTable(layout.classes, layout.counts, class_losses(losses, layout), named)


def verification(
    basis: Basis, split: bool, losses_fn: Callable[[Any, Tensor], Tensor], batch: tuple[Any, Tensor]
) -> Verification:
    """Compare the class gradients of the engine in use, or of engine ``split``, with those of ``joint``."""
    x, y = batch
    losses = losses_fn(x, y)
    layout = basis.enter(losses, y)
    names = {p: name for name, p in basis.model.named_parameters()}
    with basis.graph(losses) as graph:
        parameters = basis.parameters
        plan = basis.engines.plan(losses, layout, graph, parameters)
        expected = joint_terms(losses, layout, parameters, 1.0, Memory(basis.max_memory), keep_graph=True)
        if not split:
            found = basis.engines.terms(losses, layout, plan, parameters, 1.0)
            return Verification("joint" if plan is None else "fused", relative_errors(found, expected, names))
    sums = Accumulator(basis.max_memory)
    for part in class_parts(y, layout, None):
        basis.add_batch(sums, losses_fn(select(x, part), y[part]), y[part])
    with torch.no_grad():
        return Verification("split", relative_errors(sums.finish()[0], expected, names))

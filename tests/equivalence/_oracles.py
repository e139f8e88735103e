"""The class gradients of a case, by means that share nothing with classgrad; and classgrad's own ways to them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torchjd.autogram import Engine

from classgrad import ClassGradients, Normalize

from ._case import OUTPUTS, Case


def plain_gradients(case: Case) -> Tensor:
    """One ordinary backward pass per class through the whole batch: L × P, absent classes zero."""
    parameters = [p for p in case.model.parameters() if p.requires_grad]
    losses, y = case.losses(), case.layout.y
    labels = sorted(case.layout.declared or set(y.tolist()))
    rows = []
    for label in labels:
        chosen = losses[y == label].sum() / len(y)
        found = torch.autograd.grad(chosen, parameters, retain_graph=True, allow_unused=True, materialize_grads=True)
        rows.append(torch.cat([g.flatten() for g in found]))
    return torch.stack(rows)


class _OnePiece(nn.Module):
    """A parameter of its own makes TorchJD differentiate the model in one piece."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.model = model
        self.nothing = nn.Parameter(torch.zeros((), dtype=dtype))

    def forward(self, *x: Any) -> Tensor:
        out: Tensor = self.model(*x)
        return out + self.nothing * 0


def torchjd_gram(case: Case) -> Tensor:
    """TorchJD's Gramian of the Jacobian of the class losses, for the classes that are present."""
    model = _OnePiece(case.model, case.dtype) if case.network.whole else case.model
    engine = Engine(model, batch_dim=None)
    y = case.layout.y
    x = case.network.x.contiguous()  # vmap does not know channels_last
    losses = replace(case, network=replace(case.network, model=model, x=x)).losses()
    f = torch.stack([losses[y == label].sum() for label in y.unique()]) / len(y)
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "There is a performance drop because we have not yet implemented the batching"
        )
        gramian: Tensor = engine.compute_gramian(f)
    return gramian.detach()


@dataclass(frozen=True)
class Strategy:
    """A way of the fused engine that it would otherwise choose by cost."""

    ghost: bool
    rows: bool
    max_memory: int


STRATEGIES = [Strategy(*choice) for choice in product((False, True), (False, True), (0, 2**30))]


@contextmanager
def forced(strategy: Strategy | None) -> Iterator[None]:
    """Make the fused engine take its ways by decree, not by cost; or by cost after all."""
    if strategy is None:
        yield
        return
    layers = "classgrad.gradients.layers"
    with (
        mock.patch(f"{layers}._linear.ghost_is_cheaper", return_value=strategy.ghost),
        mock.patch(f"{layers}._conv.ghost_is_cheaper", return_value=strategy.ghost),
        mock.patch(f"{layers}._conv.rows_are_cheaper", return_value=strategy.rows),
    ):
        yield


@contextmanager
def _watched(case: Case) -> Iterator[None]:
    """Where all parameters are covered neither a warning nor a backward pass per class is allowed."""
    with warnings.catch_warnings():
        if not case.network.covered:
            warnings.filterwarnings("ignore", "Something after layer")
            yield
            return
        refusal = AssertionError("a backward pass per class where one pass covers everything")
        with (
            mock.patch("classgrad.gradients.engines._engines.joint_terms", side_effect=refusal),
            mock.patch("classgrad.gradients.engines._fused.joint_terms", side_effect=refusal),
        ):
            yield


@dataclass
class Found:
    """What an engine made of a case."""

    norms: Tensor
    direction: Tensor
    gram: Tensor | None = None
    matrix: Tensor | None = None


def fused(case: Case, strategy: Strategy | None, table: bool = True) -> Found:
    """The fused engine by one strategy: PCN's step, and the Gram matrix and the gradients themselves."""
    gram = None
    memory = 2**30 if strategy is None else strategy.max_memory
    with forced(strategy), _watched(case):
        if case.network.covered or memory:
            with _engine(case, "fused", gram=True, max_memory=memory) as grads:
                gram = grads.backward(case.losses(), case.layout.y).gram
        with _engine(case, "fused", max_memory=memory) as grads:
            step = grads.backward(case.losses(), case.layout.y)
        direction = _take_direction(case)
        matrix = None
        if table:
            with _engine(case, "fused") as grads:
                matrix = grads.gradients(case.losses(), case.layout.y).matrix
    assert step.norms is not None
    return Found(step.norms, direction, gram, matrix)


def joint(case: Case) -> Found:
    with _engine(case, "joint", gram=True) as grads:
        matrix = grads.gradients(case.losses(), case.layout.y).matrix
        step = grads.backward(case.losses(), case.layout.y)
    assert step.norms is not None
    return Found(step.norms, _take_direction(case), step.gram, matrix)


def split(case: Case, chunk: int | None = None) -> Found:
    """Class by class; bags cannot be cut along the first dimension of their inputs, so their forward sees them all."""
    whole = isinstance(case.network.x, tuple)
    x = torch.arange(case.layout.examples) if whole else case.network.x

    def loss(part: Tensor, y: Tensor) -> Tensor:
        return case.losses()[part] if whole else case.loss(part, y.remainder(OUTPUTS))

    with _engine(case, "split") as grads:
        step = grads.backward_through(loss, x, case.layout.y, chunk=chunk)
    assert step.norms is not None
    return Found(step.norms, _take_direction(case))


def _engine(case: Case, name: Any, **options: Any) -> ClassGradients:
    case.model.zero_grad()
    return ClassGradients(case.model, Normalize(), engine=name, classes=case.layout.declared, **options)


def _take_direction(case: Case) -> Tensor:
    parameters = [p for p in case.model.parameters() if p.requires_grad]
    parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    case.model.zero_grad()
    return torch.cat([part.flatten() for part in parts])

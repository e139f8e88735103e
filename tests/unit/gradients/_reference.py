"""Class gradients by plain autograd, and small things to try them on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from classgrad import ClassGradients


def cross_entropy(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out, y, reduction="none")


def loss_of(model: nn.Module) -> Callable[[Any, Tensor], Tensor]:
    """One loss per example, as ``backward_through``, ``refresh`` and ``verify`` take it."""
    return lambda x, y: cross_entropy(model(x), y)


def flat_gradients(losses: Tensor, y: Tensor, parameters: Iterable[nn.Parameter]) -> Tensor:
    """One ordinary backward pass per class that is present: L × P."""
    parameters = [p for p in parameters if p.requires_grad]
    rows = []
    for label in y.unique():
        chosen = losses[y == label].sum() / len(y)
        found = torch.autograd.grad(chosen, parameters, retain_graph=True, allow_unused=True, materialize_grads=True)
        rows.append(torch.cat([g.to_dense().flatten() for g in found]))
    return torch.stack(rows)


def flat_grad(model: nn.Module) -> Tensor:
    """What was written to ``p.grad``, as one vector."""
    parts = [p.grad if p.grad is not None else torch.zeros_like(p) for p in model.parameters() if p.requires_grad]
    return torch.cat([part.to_dense().flatten() for part in parts])


def unit_sum(gradients: Tensor) -> Tensor:
    """PCN's direction."""
    norms = gradients.norm(dim=1, keepdim=True)
    return (gradients / norms.where(norms > 0, 1.0)).sum(0)


def small_net(*, width: int = 5, outputs: int = 3, dtype: torch.dtype = torch.float64, seed: int = 0) -> nn.Sequential:
    """A net on vectors of length 4."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, outputs)).to(dtype)


def batch(
    examples: int = 8, classes: int = 3, dtype: torch.dtype = torch.float64, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Random vectors, with every class among the labels in no particular order."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(examples).remainder(classes)[torch.randperm(examples, generator=generator)]
    return torch.randn(examples, 4, generator=generator, dtype=dtype), y


def assert_exact(
    model: nn.Module, forward: Callable[[], Tensor], y: Tensor, grads: ClassGradients | None = None, **options: Any
) -> None:
    """``forward`` makes the losses; the step, by default of a new object, must be that of plain autograd."""
    gradients = flat_gradients(forward(), y, model.parameters())
    model.zero_grad()
    with nullcontext(grads) if grads else ClassGradients(model, **options) as chosen:
        step = chosen.backward(forward(), y)
    torch.testing.assert_close(flat_grad(model), unit_sum(gradients), rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(step.norms, gradients.norm(dim=1), rtol=1e-11, atol=1e-13)
    model.zero_grad()

"""The end of a step: its direction goes to ``p.grad``."""

from __future__ import annotations

from collections.abc import Mapping, Set
from types import NoneType

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from classgrad._errors import InputError
from classgrad.gradients._step import Step


def scale_of(scaler: GradScaler | None, losses: Tensor) -> Tensor | float:
    """Return the loss scale as a tensor on the device, without waiting for it."""
    if not isinstance(scaler, (GradScaler, NoneType)):
        raise InputError(f"Parameter `scaler` should be a torch.amp.GradScaler. Found {scaler!r}.")
    if scaler is None or not scaler.is_enabled():
        return 1.0
    scale: Tensor = scaler.scale(torch.ones((), dtype=torch.float32, device=losses.device))
    return scale


def sparse_parameters(model: nn.Module) -> frozenset[Tensor]:
    """Return the parameters whose gradients the model's user wants sparse, as some optimizers do."""
    tables = (m for m in model.modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag)) and m.sparse)
    return frozenset(table.weight for table in tables)


def write(
    step: Step,
    direction: Mapping[nn.Parameter, Tensor],
    sparse: Set[Tensor],
    scaler: GradScaler | None,
    scale: Tensor | float = 1.0,
) -> Step:
    """Add the direction times ``scale`` to ``p.grad``; an inf in each tells the scaler of a class that had one."""
    scaled = scaler is not None and scaler.is_enabled()
    for p, part in direction.items():
        if scaled:
            part = part.to_dense() * scale + torch.where(step.finite.all(), 0.0, torch.inf)
        if part.dtype != p.dtype:
            part = part.to(p.dtype)
        if not part.is_sparse:
            if sparse and p in sparse:
                part = part.to_sparse(1)
            elif part.stride() != p.stride():
                part = torch.empty_like(p).copy_(part)  # as autograd lays them out; fused optimizers go by it unasked
        if p.grad is None:
            p.grad = part
        else:
            p.grad += part
        if p._post_accumulate_grad_hooks:
            for hook in p._post_accumulate_grad_hooks.values():
                hook(p)
    return step

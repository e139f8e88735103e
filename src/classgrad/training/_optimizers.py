"""torch's optimizers and learning-rate schedulers by name."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from classgrad._errors import InputError
from classgrad.training._update import Update

_UNFIT = {"LBFGS", "SparseAdam"}
_NEEDS_OBJECTS = {"LambdaLR", "MultiplicativeLR", "SequentialLR", "ChainedScheduler", "LRScheduler", "_LRScheduler"}

OPTIMIZERS: dict[str, type[Optimizer]] = {
    name.lower(): kind
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type) and issubclass(kind, Optimizer) and kind is not Optimizer and name not in _UNFIT
}
"""torch.optim's optimizers by lower-case name.

LBFGS, which evaluates the loss several times a step, and SparseAdam, which takes no dense gradients, are left out.
"""

LR_SCHEDULERS: dict[str, type[LRScheduler]] = {
    name.lower(): kind
    for name, kind in vars(lr_scheduler).items()
    if isinstance(kind, type) and issubclass(kind, LRScheduler) and name not in _NEEDS_OBJECTS
}
"""torch.optim.lr_scheduler's schedulers by lower-case name, but for those made of functions or other schedulers."""


def make_optimizer(
    name: str, parameters: Iterable[nn.Parameter], lr: float, options: Mapping[str, Any] | None = None
) -> Optimizer:
    """Make the optimizer ``name`` (plain ``sgd``: x ← x − η Σ_l w_l g_l, as in the paper)."""
    kind = OPTIMIZERS.get(name.lower())
    if kind is None:
        raise InputError(f"Parameter `optimizer` should be one of {', '.join(OPTIMIZERS)}. Found {name!r}.")
    parameters = list(parameters)
    if (options or {}).get("differentiable"):
        raise InputError(f"Optimizer {name!r} should be used without `differentiable`, which no step here needs.")
    try:
        optimizer = kind(parameters, lr=lr, **{**_recordable(kind, parameters), **(options or {})})  # type: ignore[call-arg]
        optimizer._warned_capturable_if_run_uncaptured = True  # the first step does
        return optimizer
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"Optimizer {name!r} cannot be made with {dict(options or {})}: {_line(error)}") from error


def _recordable(kind: type[Optimizer], parameters: Sequence[nn.Parameter]) -> dict[str, Any]:
    """Give the options with which a step on a GPU can be recorded in a CUDA graph, with the rate on the device."""
    if not parameters or not parameters[0].is_cuda:
        return {}
    if kind is torch.optim.SGD and parameters[0].dtype != torch.float64:
        return {"fused": True}
    return {"capturable": True} if "capturable" in inspect.signature(kind).parameters else {}


def make_lr_scheduler(name: str, optimizer: Optimizer, options: Mapping[str, Any] | None = None) -> LRScheduler:
    """Make torch's scheduler ``name``; it steps once after every update."""
    kind = LR_SCHEDULERS.get(name.lower())
    if kind is None:
        raise InputError(f"Parameter `scheduler` should be one of {', '.join(LR_SCHEDULERS)}. Found {name!r}.")
    try:
        return kind(optimizer, **(options or {}))
    except (TypeError, ValueError) as error:
        raise InputError(f"Scheduler {name!r} cannot be made with {dict(options or {})}: {_line(error)}") from error


def advance(scheduler: LRScheduler, update: Update) -> None:
    """One step of the scheduler; ReduceLROnPlateau watches the batch's loss."""
    try:
        if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
            scheduler.step(update.loss.detach())
        else:
            scheduler.step()
    except (ArithmeticError, TypeError, ValueError) as error:
        raise InputError(f"Scheduler {type(scheduler).__name__.lower()!r} cannot go on: {_line(error)}") from error


def current_lr(optimizer: Optimizer) -> float:
    """Give the learning rate the next step will use."""
    return float(optimizer.param_groups[0]["lr"])


def set_lr(optimizer: Optimizer, lr: float) -> None:
    """Make the next step use ``lr``."""
    for group in optimizer.param_groups:
        group["lr"] = lr


def _line(error: Exception) -> str:
    return " ".join(str(error).split())

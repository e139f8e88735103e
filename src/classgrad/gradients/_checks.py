"""The errors of settings and of a step's inputs, each one line."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from classgrad._errors import InputError
from classgrad.rules import Rule

_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def check_labels(y: Tensor, examples: int, device: torch.device) -> Tensor:
    """Return the labels as int64 or say what is wrong with them."""
    if not isinstance(y, Tensor):
        raise InputError(f"Parameter `y` should be a tensor of integer labels. Found {type(y).__name__}.")
    if y.dim() != 1 or len(y) != examples:
        raise InputError(
            f"Parameter `y` should hold one label per example, shape ({examples},). Found shape {tuple(y.shape)}."
        )
    if y.dtype not in _INTEGERS:
        raise InputError(f"Parameter `y` should have an integer dtype such as torch.int64. Found {y.dtype}.")
    if y.device != device:
        raise InputError(
            f"Parameter `y` should be on the device of the losses, {device}. Found {y.device}; "
            f"move it with y.to({str(device)!r})."
        )
    return y.to(torch.int64)


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise unless a setting is one of its choices."""
    if value not in choices:
        raise InputError(f"Parameter `{name}` should be one of {', '.join(choices)}. Found {value!r}.")


def check_settings(model: object, rule: object, max_memory: int, mixing: object, record: object) -> None:
    """Raise for settings of the wrong kind."""
    if not isinstance(model, nn.Module):
        raise InputError(f"Parameter `model` should be a torch.nn.Module. Found {type(model).__name__}.")
    if rule is not None:
        check_rule(rule)
    if not isinstance(mixing, Sequence) or not all(isinstance(kind, type) for kind in mixing):
        raise InputError(f"Parameter `mixing` should be a sequence of layer types. Found {mixing!r}.")
    if type(max_memory) is not int or max_memory < 0:
        raise InputError(f"Parameter `max_memory` should be a number of bytes of at least 0. Found {max_memory!r}.")
    if not isinstance(record, bool):
        raise InputError(f"Parameter `record` should be true or false. Found {record!r}.")


def check_rule(rule: object) -> None:
    """Raise for what is no rule."""
    if not isinstance(rule, Rule):
        raise InputError(f"Parameter `rule` should be a rule such as Normalize(). Found {rule!r}.")


def check_group(model: nn.Module, group: object, classes: object) -> None:
    """Raise for what would let the processes of a group drift apart without a word."""
    if isinstance(model, DistributedDataParallel):
        raise InputError(
            "Parameter `model` should be the model itself. Found DistributedDataParallel, which averages gradients "
            "that are normalized already; give ddp.module, `group` and `classes` to exchange class sums instead."
        )
    if group is not None and classes is None:
        raise InputError("Parameter `classes` should be given with `group`, so that all processes agree. Found None.")


def check_losses(losses: Tensor) -> None:
    """Raise unless the losses are one differentiable number per example."""
    if not isinstance(losses, Tensor):
        raise InputError(
            f"Parameter `losses` should be a tensor of one loss per example. Found {type(losses).__name__}."
        )
    if losses.dim() == 0:
        raise InputError(
            "Parameter `losses` should hold one loss per example, shape (N,). Found a scalar; "
            'use the loss with reduction="none".'
        )
    if losses.dim() != 1:
        raise InputError(
            f"Parameter `losses` should hold one loss per example, shape (N,). Found shape {tuple(losses.shape)}; "
            "sum or average over the other dimensions."
        )
    if not losses.is_floating_point():
        raise InputError(f"Parameter `losses` should have a floating dtype. Found {losses.dtype}.")
    if len(losses) and not losses.requires_grad:
        raise InputError(
            "Parameter `losses` should carry a graph. Found losses without one; compute them outside torch.no_grad() "
            "from parameters that require gradients."
        )

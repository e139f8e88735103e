"""The step of an optimizer as part of a recording."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from classgrad._errors import InputError


class RecordedUpdate:
    """``optimizer.step()`` with learning rates that are read from the device, so that a replay uses the present ones.

    The optimizer's groups keep their rates as plain numbers, for schedulers to change and for checkpoints to hold;
    :meth:`fill` brings them over. All other settings are part of :attr:`key`: where one changes, another recording is
    due.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        reason = why_not(optimizer)
        if reason is not None:
            raise InputError(f"Parameter `optimizer` should be one that can be recorded in a CUDA graph: {reason}.")
        self.optimizer = optimizer
        self._rates = [_rate(group["params"][0], float(group["lr"])) for group in optimizer.param_groups]
        self._filled = [float(group["lr"]) for group in optimizer.param_groups]

    @property
    def key(self) -> Hashable:
        """Every setting of every group but its learning rate."""
        return tuple(
            value
            for group in self.optimizer.param_groups
            for name, value in group.items()
            if name not in ("params", "lr", "initial_lr")
        )

    def fill(self) -> None:
        """Make the next step use the groups' learning rates."""
        for number, group in enumerate(self.optimizer.param_groups):
            if group["lr"] != self._filled[number]:
                self._rates[number].fill_(group["lr"])
                self._filled[number] = group["lr"]

    def __call__(self) -> None:
        """Make the step and forget the gradients."""
        groups = self.optimizer.param_groups
        numbers = [group["lr"] for group in groups]
        try:
            for group, rate in zip(groups, self._rates, strict=True):
                group["lr"] = rate
                _align(group["params"])
            self.optimizer.step()
        finally:
            for group, number in zip(groups, numbers, strict=True):
                group["lr"] = number
        self.optimizer.zero_grad()


def why_not(optimizer: Optimizer) -> str | None:
    """Say why an optimizer's step cannot be part of a recording, if it cannot."""
    name = type(optimizer).__name__
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            return "give `lr` as a number"
        if group.get("differentiable"):
            return "leave out `differentiable`"
        if isinstance(optimizer, SGD):
            if not group["fused"]:
                return "make SGD with fused=True"
            if any(p.dtype == torch.float64 for p in group["params"]):
                return "SGD reads its rate from the device in float32, too coarse for float64 parameters"
        elif not group.get("capturable"):
            return f"make {name} with capturable=True" if "capturable" in group else f"{name} cannot"
    return None


def _align(parameters: Sequence[Tensor]) -> None:
    """Lay gradients out in memory as their parameters are, as fused optimizers demand."""
    for p in parameters:
        if p.grad is not None and p.grad.stride() != p.stride():
            p.grad = torch.empty_like(p).copy_(p.grad)


def _rate(like: Tensor, value: float) -> Tensor:
    dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
    return torch.full((), value, dtype=dtype, device=like.device)

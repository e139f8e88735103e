"""Networks through torch.compile: as a whole, or what lies between the layers that class gradients are read off."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import groupby

import torch
from torch import Tensor, nn

Forward = Callable[[Tensor], Tensor]

_POOLS = frozenset({nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d})
_PLAIN = _POOLS | {nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Identity, nn.Flatten}
"""Layers without parameters that draw no random numbers; dropout draws those that it does without a compiler."""

_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


def compiled(forward: Forward) -> Forward:
    """Compile a function of a batch, anew for every shape that comes, up to the eight that torch allows for."""

    def call(x: Tensor) -> Tensor:
        return forward(x)

    # torch counts shapes by code object: with one of its own no function uses up what is allowed to another.
    call.__code__ = call.__code__.replace()
    made: Forward = torch.compile(call, dynamic=False)
    return made


def compiled_between(model: nn.Module) -> Forward:
    """Compile what lies between the layers of ``model`` that have parameters, which are called with their hooks.

    That is every run of plain layers in an ``nn.Sequential``, also in those within it. Modules with a forward of their
    own run as they are, and so does a single plain layer that is no pool: there is nothing to merge. The model itself
    stays as it is.
    """
    parts: list[Forward] = []
    for plain, layers in groupby(_in_order(model), key=_is_plain):
        run = list(layers)
        worth = plain and (len(run) > 1 or type(run[0]) in _POOLS)
        parts += [compiled(nn.Sequential(*run))] if worth else run

    def forward(x: Tensor) -> Tensor:
        for part in parts:
            x = part(x)
        return x

    return forward


def backward_again() -> AbstractContextManager[object]:
    """Let what is compiled within go through backward more than once, as the first look at a graph does.

    Else compiled functions may overwrite what they saved, and refuse a second pass.
    """
    import torch._functorch.config as settings

    return settings.patch(donated_buffer=False)  # type: ignore[no-any-return]


def twin(model: nn.Module) -> nn.Module:
    """Copy a model but for its tensors, which both have: it takes no hooks that the model is given later."""
    return copy.deepcopy(model, {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())})


def _in_order(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers that run one after the other: those of Sequentials, or the model itself."""
    if type(model) is nn.Sequential and not _changed(model):
        for child in model:
            yield from _in_order(child)
    else:
        yield model


def _is_plain(layer: nn.Module) -> bool:
    return type(layer) in _PLAIN and not _changed(layer)


def _changed(module: nn.Module) -> bool:
    """Whether something was hooked to a module or its forward replaced."""
    return "forward" in vars(module) or any(getattr(module, name) for name in _HOOKS)

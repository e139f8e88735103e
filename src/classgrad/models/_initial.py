"""Initial parameters, drawn from a given generator and never from the global one."""

from collections.abc import Callable
from math import sqrt
from typing import TypeAlias, TypeVar

import torch
from torch import nn

Fill: TypeAlias = Callable[[nn.Conv2d | nn.Linear, torch.Generator], None]
Model = TypeVar("Model", bound=nn.Module)


def he_normal(layer: nn.Conv2d | nn.Linear, generator: torch.Generator) -> None:
    """Fill in normal weights of variance 2/fan_in (He et al. 2015) and zero biases."""
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu", generator=generator)
    _fill_bias(layer, 0.0, generator)


def glorot_normal(layer: nn.Conv2d | nn.Linear, generator: torch.Generator) -> None:
    """Fill in normal weights of variance 2/(fan_in + fan_out) (Glorot & Bengio 2010) and zero biases."""
    nn.init.xavier_normal_(layer.weight, generator=generator)
    _fill_bias(layer, 0.0, generator)


def torch_default(layer: nn.Conv2d | nn.Linear, generator: torch.Generator) -> None:
    """Fill in what torch's layers start from: weights and biases uniform within ±1/√fan_in."""
    bound = 1 / sqrt(layer.weight[0].numel())
    nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
    _fill_bias(layer, bound, generator)


def realize(
    construct: Callable[[], Model],
    fill: Callable[[Model, nn.Conv2d | nn.Linear], Fill],
    generator: torch.Generator | None,
) -> Model:
    """Construct a model on the generator's device, each layer filled by what `fill` names for it.

    Construction runs on the meta device, where torch's own initialization draws nothing. Without a generator, one
    seeded with 0 is used.
    """
    source = torch.Generator().manual_seed(0) if generator is None else generator
    with torch.device("meta"):
        model = construct()
    model.to_empty(device=source.device)
    for layer in model.modules():
        if isinstance(layer, nn.GroupNorm):
            layer.reset_parameters()
        elif isinstance(layer, (nn.Conv2d, nn.Linear)):
            fill(model, layer)(layer, source)
    return model


def _fill_bias(layer: nn.Conv2d | nn.Linear, bound: float, generator: torch.Generator) -> None:
    """Draw biases, if there are any, uniformly from ±bound; a bound of 0 makes them 0."""
    if layer.bias is not None:
        nn.init.uniform_(layer.bias, -bound, bound, generator=generator)

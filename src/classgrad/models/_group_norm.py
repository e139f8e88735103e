"""Batch normalization replaced by group normalization."""

import warnings

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from classgrad._errors import InputError
from classgrad.models._checks import whole

_CONVERTED = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def to_group_norm(model: nn.Module, channels_per_group: int = 16) -> nn.Module:
    """Replace every BatchNorm1d/2d/3d and SyncBatchNorm layer of `model` by GroupNorm, in place.

    Batch normalization mixes the examples of a batch, so the gradient of a class cannot be told apart; group
    normalization treats each example alone. The model itself is changed and returned (a layer given alone is replaced
    by the returned one). Weights, biases and eps are kept: the parameters are the same objects as before, so an
    optimizer that holds them stays valid, and device, dtype, `requires_grad` and train/eval mode stay. The running
    statistics are lost, so a trained model needs some further training.

    :param channels_per_group: how many channels are normalized together (16 is the choice of Wu & He 2018). Where it
        does not divide a layer's channels, the nearest number that does is taken, never 1 if there is another.

    A group of a single value is always normalized to zero. A one-dimensional layer that could only have such groups
    is an error; groups of one channel in other layers, which hold a single value where the map is one pixel, are
    warned about.

    >>> model = to_group_norm(nn.Sequential(nn.Conv2d(3, 24, 3), nn.BatchNorm2d(24)), channels_per_group=8)
    >>> type(model[1]).__name__, model[1].num_groups
    ('GroupNorm', 3)
    """
    wanted = whole("channels_per_group", channels_per_group)
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, _BatchNorm)}
    replacements = {id(layer): _replacement(name, layer, wanted) for name, layer in layers.items()}
    _warn_of_single_channels([name for name, layer in layers.items() if _has_single_channels(replacements[id(layer)])])
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):  # named_children() omits what is registered twice
            if id(child) in replacements:
                setattr(parent, name, replacements[id(child)])
    return replacements.get(id(model), model)


def _replacement(name: str, layer: _BatchNorm, wanted: int) -> nn.GroupNorm:
    place = f"layer {name or 'given'} ({type(layer).__name__})"
    if type(layer) not in _CONVERTED:
        raise InputError(
            f"to_group_norm replaces torch's own batch normalization only; {place} may do more: replace it by hand"
        )
    channels = layer.num_features
    size = _group_size(channels, wanted)
    if size == 1 and isinstance(layer, nn.BatchNorm1d):
        raise InputError(
            f"channels_per_group={wanted} gives {place} of {channels} channels groups of a single value, and"
            " normalizing those erases them; use at least 2 channels per group, or remove the layer"
        )
    norm = nn.GroupNorm(channels // size, channels, eps=layer.eps, affine=layer.affine, device="meta")
    if layer.affine:
        norm.weight, norm.bias = layer.weight, layer.bias
    return norm.train(layer.training)


def _group_size(channels: int, wanted: int) -> int:
    divisors = [size for size in range(1, channels + 1) if channels % size == 0]
    allowed = divisors[1:] if wanted > 1 and channels > 1 else divisors
    return min(allowed, key=lambda size: (abs(size - wanted), -size))


def _has_single_channels(norm: nn.GroupNorm) -> bool:
    return norm.num_groups == norm.num_channels


def _warn_of_single_channels(names: list[str]) -> None:
    if names:
        warnings.warn(
            f"groups of one channel in {', '.join(name or 'the layer' for name in names)} hold a single value, which is"
            " normalized to zero, wherever the map is one pixel",
            stacklevel=3,
        )

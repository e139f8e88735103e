"""Mod3: VGG-16 with group normalization and dropout."""

import torch
from torch import nn

from classgrad._errors import InputError
from classgrad.models._checks import VARIANTS, groups_of, height_and_width, one_of, whole
from classgrad.models._initial import glorot_normal, realize

_BLOCKS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


def vgg16(
    num_classes: int,
    *,
    in_channels: int = 3,
    image_size: int | tuple[int, int] = 32,
    channels_per_group: int = 4,
    dropout: float = 0.2,
    variant: str = "paper",
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    """Mod3 of the paper: the 13 convolutions of VGG-16 with group normalization and dropout, and one linear layer.

    ``"paper"``: every convolution is followed by group normalization, ReLU and dropout; five max pools.
    ``"authors"``: every convolution is followed by tanh, then group normalization; dropout after all but the last
    convolution of a block and after the last pool, which averages. Both start as Glorot's normal with biases at 0,
    drawn from `generator` (by default one seeded with 0), on whose device the model is made.

    In training mode dropout draws from torch's global generator, as `nn.Dropout` always does: seed that for runs
    that can be repeated.

    :param image_size: one number or (height, width), at least 32; larger maps are averaged before the linear layer.
    :param channels_per_group: the paper's GF, the number of channels normalized together; divides 64.
    :param dropout: the paper's DO rate.

    >>> sum(p.numel() for p in vgg16(2, variant="authors").parameters())
    14724162
    """
    authors = one_of("variant", variant, VARIANTS) == "authors"
    classes, channels = whole("num_classes", num_classes), whole("in_channels", in_channels)
    height_and_width(image_size, least=32)
    group = groups_of(channels_per_group, narrowest=64, positions=4)
    if not 0 <= dropout < 1:
        raise InputError(f"dropout must be at least 0 and below 1; found {dropout}")

    def construct() -> nn.Sequential:
        features = _authors_features(channels, group, dropout) if authors else _features(channels, group, dropout)
        return nn.Sequential(*features, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(_BLOCKS[-1][-1], classes))

    return realize(construct, lambda *_: glorot_normal, generator)


def _features(channels: int, group: int, dropout: float) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for block in _BLOCKS:
        for width in block:
            conv, norm = _conv_and_norm(channels, width, group)
            layers += [conv, norm, nn.ReLU(), nn.Dropout(dropout)]
            channels = width
        layers.append(nn.MaxPool2d(2))
    return layers


def _authors_features(channels: int, group: int, dropout: float) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for block in _BLOCKS:
        for width in block:
            conv, norm = _conv_and_norm(channels, width, group)
            layers += [conv, nn.Tanh(), norm, nn.Dropout(dropout)]
            channels = width
        layers[-1] = nn.MaxPool2d(2)
    layers[-1] = nn.AvgPool2d(2)
    return [*layers, nn.Dropout(dropout)]


def _conv_and_norm(channels: int, width: int, group: int) -> tuple[nn.Conv2d, nn.GroupNorm]:
    return nn.Conv2d(channels, width, 3, padding=1), nn.GroupNorm(width // group, width)

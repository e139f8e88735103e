"""Mod2: ResNet-18 with group normalization."""

from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor, nn

from classgrad.models._checks import VARIANTS, groups_of, height_and_width, one_of, whole
from classgrad.models._initial import realize, torch_default

_STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))  # channels, stride of the first block


@dataclass(frozen=True)
class _Style:
    """Where the text's ResNet-18 and the authors' differ."""

    conv_bias: bool
    pool_before_norm: bool  # in the stem
    relu_before_sum: bool  # in the blocks


_STYLES = {"paper": _Style(False, False, False), "authors": _Style(True, True, True)}


def resnet18(
    num_classes: int,
    *,
    in_channels: int = 3,
    image_size: int | tuple[int, int] = 32,
    channels_per_group: int = 4,
    variant: str = "paper",
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    """Mod2 of the paper: ResNet-18 with group normalization in place of batch normalization.

    ``"paper"``: the network of He et al. (2016) with its 7×7 stem, convolutions without biases. ``"authors"``:
    convolutions with biases, the stem's max pool before its normalization, and one more ReLU in every block, before
    the shortcut is added. Both start from torch's defaults, drawn from `generator` (by default one seeded with 0),
    on whose device the model is made.

    :param image_size: one number or (height, width). Maps shrink by 32: those of 32-pixel images end as one pixel.
    :param channels_per_group: the paper's GF, the number of channels normalized together; divides 64.

    >>> sum(p.numel() for p in resnet18(100, variant="authors").parameters())
    11232612
    """
    style = _STYLES[one_of("variant", variant, VARIANTS)]
    classes, channels = whole("num_classes", num_classes), whole("in_channels", in_channels)
    height, width = height_and_width(image_size, least=1)
    group = groups_of(channels_per_group, narrowest=64, positions=ceil(height / 32) * ceil(width / 32))

    def construct() -> nn.Sequential:
        pool, norm = nn.MaxPool2d(3, stride=2, padding=1), nn.GroupNorm(64 // group, 64)
        stem = [pool, norm, nn.ReLU()] if style.pool_before_norm else [norm, nn.ReLU(), pool]
        return nn.Sequential(
            nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=style.conv_bias),
            *stem,
            *_blocks(group, style),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(512, classes),
        )

    return realize(construct, lambda *_: torch_default, generator)


def _blocks(group: int, style: _Style) -> list[nn.Module]:
    blocks: list[nn.Module] = []
    before = 64
    for width, stride in _STAGES:
        blocks += [_Block(before, width, stride, group, style), _Block(width, width, 1, group, style)]
        before = width
    return blocks


class _Block(nn.Module):
    """Two 3×3 convolutions and a shortcut; every layer runs once in a forward pass."""

    def __init__(self, before: int, width: int, stride: int, group: int, style: _Style) -> None:
        super().__init__()
        groups = width // group
        self.residual = nn.Sequential(
            nn.Conv2d(before, width, 3, stride, padding=1, bias=style.conv_bias),
            nn.GroupNorm(groups, width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=style.conv_bias),
            nn.GroupNorm(groups, width),
            nn.ReLU() if style.relu_before_sum else nn.Identity(),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != width:
            shortcut = nn.Conv2d(before, width, 1, stride, bias=style.conv_bias)
            self.shortcut = nn.Sequential(shortcut, nn.GroupNorm(groups, width))
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Add the residual branch to the shortcut."""
        out: Tensor = self.relu(self.residual(x) + self.shortcut(x))
        return out

"""Mod1: two convolutions and a linear layer."""

import torch
from torch import nn

from classgrad.models._checks import VARIANTS, height_and_width, one_of, whole
from classgrad.models._initial import glorot_normal, he_normal, realize


def simple_cnn(
    num_classes: int,
    *,
    in_channels: int = 3,
    image_size: int | tuple[int, int] = 32,
    variant: str = "paper",
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    """Mod1 of the paper: conv 5×5 (16), ReLU, max pool, conv 5×5 (32), tanh, average pool, linear.

    Text and code agree on it, so both variants are the same network. Convolutions start as He's normal, the linear
    layer as Glorot's, biases at 0; drawn from `generator` (by default one seeded with 0), on whose device the model
    is made.

    :param image_size: one number or (height, width), at least 4.

    >>> model = simple_cnn(10)
    >>> sum(p.numel() for p in model.parameters())
    34538
    >>> simple_cnn(10, in_channels=1, image_size=8)(torch.zeros(5, 1, 8, 8)).shape
    torch.Size([5, 10])
    """
    one_of("variant", variant, VARIANTS)
    classes, channels = whole("num_classes", num_classes), whole("in_channels", in_channels)
    height, width = height_and_width(image_size, least=4)

    def construct() -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(channels, 16, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 5, padding=2),
            nn.Tanh(),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * (height // 4) * (width // 4), classes),
        )

    return realize(construct, lambda _, layer: he_normal if isinstance(layer, nn.Conv2d) else glorot_normal, generator)

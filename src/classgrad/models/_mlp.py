"""A small network of linear layers."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn

from classgrad._errors import InputError
from classgrad.models._checks import VARIANTS, one_of, whole
from classgrad.models._initial import glorot_normal, he_normal, realize


def mlp(
    num_classes: int,
    *,
    in_features: int = 3 * 32 * 32,
    hidden: Sequence[int] = (32, 32),
    variant: str = "paper",
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    """Linear layers with ReLU between them and tanh before the last, as in the authors' code (not in the paper).

    Inputs of any shape with `in_features` numbers are flattened. Hidden layers start as He's normal, the last as
    Glorot's, biases at 0; drawn from `generator` (by default one seeded with 0), on whose device the model is made.
    Both variants are the same network; without hidden layers it is softmax regression.

    >>> mlp(2, in_features=64, hidden=(16,))
    Sequential(
      (0): Flatten(start_dim=1, end_dim=-1)
      (1): Linear(in_features=64, out_features=16, bias=True)
      (2): Tanh()
      (3): Linear(in_features=16, out_features=2, bias=True)
    )
    """
    one_of("variant", variant, VARIANTS)
    classes = whole("num_classes", num_classes)
    if not isinstance(hidden, (list, tuple)):
        raise InputError(f"hidden must list the widths of the hidden layers, found {hidden!r}")
    widths = [whole("in_features", in_features), *(whole("hidden", width) for width in hidden)]

    def construct() -> nn.Sequential:
        layers: list[nn.Module] = [nn.Flatten()]
        for depth, (before, after) in enumerate(pairwise(widths), start=1):
            layers += [nn.Linear(before, after), nn.Tanh() if depth == len(widths) - 1 else nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(widths[-1], classes))

    return realize(construct, lambda model, layer: glorot_normal if layer is model[-1] else he_normal, generator)

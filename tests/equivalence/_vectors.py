"""Networks over vectors: layers called several times, shared, frozen, unused, or read by others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from ._case import OUTPUTS, Layout, Network, generators, randomize
from ._images import activations

WIDTH = 4


class Twice(nn.Module):
    """One layer called on its own output."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = self.layer(self.layer(h).tanh())
        return out


class Shared(nn.Module):
    """Two layers with one weight, and biases of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.second.weight = self.first.weight

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = self.second(self.first(h).tanh())
        return out


class Reader(nn.Module):
    """A layer whose weight is also used without calling it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, h: Tensor) -> Tensor:
        return F.linear(self.layer(h).tanh(), self.layer.weight.t())


class Autoencoder(nn.Module):
    """A layer that is only ever read, and a parameter of no layer at all."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.gain = nn.Parameter(torch.ones(()))

    def forward(self, h: Tensor) -> Tensor:
        return h @ self.layer.weight + self.gain * self.layer.bias


class Spare(nn.Module):
    """One layer in use, one frozen, one with a frozen bias, one unused and one whose output is thrown away."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.frozen, self.partly = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.unused, self.wasted = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.frozen.requires_grad_(False)
        self.partly.bias.requires_grad_(False)

    def forward(self, h: Tensor) -> Tensor:
        self.wasted(h)
        out: Tensor = self.partly(self.frozen(self.used(h)).tanh())
        return out


class Pair(nn.Module):
    """A layer of two inputs, which no rule knows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Bilinear(WIDTH, WIDTH, WIDTH)

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = self.layer(h, h.tanh())
        return out


@dataclass(frozen=True)
class Part:
    make: Callable[[], nn.Module]
    covered: bool = True
    whole: bool = False


PARTS = {
    "linear": Part(lambda: nn.Linear(WIDTH, WIDTH, bias=False)),
    "layer norm": Part(lambda: nn.LayerNorm(WIDTH)),
    "rms norm": Part(lambda: nn.RMSNorm(WIDTH)),
    "twice": Part(Twice, whole=True),
    "shared": Part(Shared, whole=True),
    "reader": Part(Reader, whole=True),
    "autoencoder": Part(Autoencoder, covered=False, whole=True),
    "spare": Part(Spare, whole=True),
    "pair": Part(Pair, covered=False),
    "weight norm": Part(lambda: parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)), covered=False, whole=True),
}


class Pooled(nn.Module):
    """The mean over whatever lies between the examples and the features, then a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, OUTPUTS)

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = self.head(h.reshape(len(h), -1, WIDTH).mean(1))
        return out


@st.composite
def vectors(draw: st.DrawFn, layout: Layout) -> Network:
    """One to four parts over inputs with up to two dimensions between the examples and the features."""
    kinds = draw(st.lists(st.sampled_from(sorted(PARTS)), min_size=1, max_size=4))
    between = draw(st.lists(st.integers(1, 3), max_size=2))
    generator = draw(generators)
    layers: list[nn.Module] = []
    for kind in kinds:
        layers += [PARTS[kind].make(), draw(activations(1))]
    model = nn.Sequential(*layers, Pooled())
    x = torch.randn(layout.examples, *between, WIDTH, generator=generator)
    if draw(st.booleans()):
        x = torch.stack([x, x], -1)[..., 1]
    return Network(
        randomize(model, generator),
        x,
        all(PARTS[kind].covered for kind in kinds),
        whole=any(PARTS[kind].whole for kind in kinds),
    )

"""The networks that benchmarks take steps of, each with inputs for it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from classgrad.models import mlp, resnet18, simple_cnn, vgg16


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.inward = nn.Linear(width, 3 * width)
        self.outward = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (p.unflatten(2, (self.heads, -1)).transpose(1, 2) for p in self.inward(x).chunk(3, 2))
        return self.outward(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attend = nn.Sequential(nn.LayerNorm(width), Attention(width, heads))
        self.think = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(x)
        return x + self.think(x)


class Transformer(nn.Module):
    """Tokens in, classes out: 4 blocks of width 128 over 64 tokens.

    Places are looked up for each example, or ``once`` for all of them.
    """

    def __init__(
        self,
        classes: int,
        width: int = 128,
        depth: int = 4,
        length: int = 64,
        vocabulary: int = 1000,
        once: bool = False,
    ) -> None:
        super().__init__()
        self.once = once
        self.token = nn.Embedding(vocabulary, width)
        self.place = nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, 4) for _ in range(depth)), nn.LayerNorm(width))
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device)[None]
        places = places if self.once else places.expand(x.shape)
        return self.head(self.blocks(self.token(x) + self.place(places)).mean(1))


class Encoder(nn.Module):
    """The same of torch's own blocks, whose attention holds its weights in one packed parameter of no layer."""

    def __init__(self, classes: int, width: int = 128, depth: int = 4) -> None:
        super().__init__()
        self.token = nn.Embedding(1000, width)
        self.places = nn.Parameter(torch.randn(64, width))
        block = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, depth, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.token(x) + self.places).mean(1))


class Gru(nn.Module):
    """Tokens in, classes out: 32 steps of a recurrent layer, which a CPU makes of single products."""

    def __init__(self, classes: int, width: int = 128) -> None:
        super().__init__()
        self.token = nn.Embedding(1000, width)
        self.layer = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.token(x))[0][:, -1])


class Lstm(nn.Module):
    """Steps of 16 numbers in, classes out: a recurrent layer that a CPU makes in one operation, or ``apart``."""

    def __init__(self, classes: int, width: int = 64, apart: bool = False) -> None:
        super().__init__()
        self.layer = nn.LSTM(16, width, batch_first=True)
        self.head = nn.Linear(width, classes)
        self.apart = apart

    def forward(self, x: Tensor) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, of GPUs it was not built for
            with torch.backends.mkldnn.flags(enabled=False) if self.apart else nullcontext():
                return self.head(self.layer(x)[0][:, -1])


class Matrices(nn.Module):
    """A network on images written down without layers."""

    def __init__(self, classes: int, width: int = 512) -> None:
        super().__init__()
        sizes = (3072, width, width, classes)
        drawn = [torch.randn(a, b) / a**0.5 for a, b in pairwise(sizes)]
        self.weights = nn.ParameterList(drawn)
        self.biases = nn.ParameterList([torch.zeros(b) for b in sizes[1:]])

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for weight, bias in zip(self.weights, self.biases, strict=True):
            x = F.relu(x) @ weight + bias
        return x


def _images(n: int) -> Tensor:
    return torch.randn(n, 3, 32, 32)


MODELS: dict[str, tuple[Callable[[int], nn.Module], Callable[[int], Tensor]]] = {
    "simple_cnn": (simple_cnn, _images),
    "resnet18": (resnet18, _images),
    "vgg16": (vgg16, _images),
    "mlp": (lambda classes: mlp(classes, hidden=(512, 512)), _images),
    "table": (lambda classes: mlp(classes, in_features=30, hidden=(64, 64)), lambda n: torch.randn(n, 30)),
    "transformer": (Transformer, lambda n: torch.randint(0, 1000, (n, 64))),
    "transformer_once": (partial(Transformer, once=True), lambda n: torch.randint(0, 1000, (n, 64))),
    "encoder": (Encoder, lambda n: torch.randint(0, 1000, (n, 64))),
    "gru": (Gru, lambda n: torch.randint(0, 1000, (n, 32))),
    "lstm": (Lstm, lambda n: torch.randn(n, 32, 16)),
    "lstm_apart": (partial(Lstm, apart=True), lambda n: torch.randn(n, 32, 16)),
    "matrices": (Matrices, _images),
}

"""Networks over tokens: embeddings, attention, recurrence, shared tables."""

from __future__ import annotations

from collections.abc import Callable

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from ._case import OUTPUTS, Layout, Network, generators, randomize

VOCABULARY = 6
WIDTH = 4


class Attention(nn.Module):
    """One head of self-attention out of plain linear layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width)

    def forward(self, h: Tensor) -> Tensor:
        scores = self.query(h) @ self.key(h).mT / h.shape[-1] ** 0.5
        return h + scores.softmax(-1) @ self.value(h)


class PackedAttention(nn.Module):
    """torch's own attention, whose input weights are one packed parameter used by no layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = self.attention(h, h, h, need_weights=False)[0]
        return h + out


class Recurrent(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width, batch_first=True)

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = self.lstm(h)[0]
        return out


class TimeFirst(nn.Module):
    """A layer over (time, examples, features): its first dimension is not the examples', even if it is as long."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = self.inner(h.transpose(0, 1)).transpose(0, 1)
        return out


def _encoder(batch_first: bool) -> nn.Module:
    return nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, dropout=0.0, batch_first=batch_first, activation="gelu")


def _feed_forward() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))


BLOCKS: dict[str, tuple[Callable[[], nn.Module], bool]] = {
    "attention": (lambda: Attention(WIDTH), True),
    "feed forward": (_feed_forward, True),
    "layer norm": (lambda: nn.LayerNorm(WIDTH), True),
    "rms norm": (lambda: nn.RMSNorm(WIDTH), True),
    "packed attention": (lambda: PackedAttention(WIDTH), True),
    "encoder": (lambda: _encoder(batch_first=True), True),
    "time first": (lambda: TimeFirst(_feed_forward()), True),
    "encoder, time first": (lambda: TimeFirst(_encoder(batch_first=False)), True),
    "recurrent": (lambda: Recurrent(WIDTH), False),
}
"""Every block with whether all its parameters are covered by layer rules."""


class Tokens(nn.Module):
    """Embedding, perhaps positions and a class token, blocks, and a head that may share the embedding's table."""

    def __init__(self, blocks: list[nn.Module], length: int, padding: int | None, extras: frozenset[str]) -> None:
        super().__init__()
        self.extras = extras
        self.embedding = nn.Embedding(VOCABULARY, WIDTH, padding_idx=padding)
        self.blocks = nn.Sequential(*blocks)
        if "positions" in extras:
            self.positions = nn.Embedding(length, WIDTH)
        if "class token" in extras:
            self.token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.head = nn.Linear(WIDTH, VOCABULARY if "tied" in extras else OUTPUTS)
        if "tied" in extras:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embedding(tokens)
        if "positions" in self.extras:
            h = h + self.positions(torch.arange(tokens.shape[1]))
        if "class token" in self.extras:
            h = torch.cat([self.token.expand(len(h), -1, -1), h], 1)
        h = self.blocks(h)
        out: Tensor = self.head(h.mean(1) if "mean" in self.extras else h[:, 0] + h[:, -1])
        return out


@st.composite
def sequences(draw: st.DrawFn, layout: Layout) -> Network:
    """Tokens through one to three blocks; now and then there are as many tokens as examples."""
    length = draw(st.integers(1, 4) | st.just(layout.examples))
    kinds = draw(st.lists(st.sampled_from(sorted(BLOCKS)), min_size=1, max_size=3))
    extras = frozenset(draw(st.sets(st.sampled_from(("tied", "positions", "class token", "mean")))))
    padding = draw(st.none() | st.integers(0, VOCABULARY - 1))
    generator = draw(generators)
    model = Tokens([BLOCKS[kind][0]() for kind in kinds], length, padding, extras)
    x = torch.randint(VOCABULARY, (layout.examples, length), generator=generator)
    covered = all(BLOCKS[kind][1] for kind in kinds) and "positions" not in extras
    return Network(randomize(model, generator), x, covered, "recurrent" not in kinds, whole=True)


class Bags(nn.Module):
    def __init__(self, bag: nn.EmbeddingBag) -> None:
        super().__init__()
        self.bag = bag
        self.head = nn.Linear(WIDTH, OUTPUTS)

    def forward(self, tokens: Tensor, offsets: Tensor | None = None, weights: Tensor | None = None) -> Tensor:
        out: Tensor = self.head(self.bag(tokens, offsets, per_sample_weights=weights).tanh())
        return out


@st.composite
def bags(draw: st.DrawFn, layout: Layout) -> Network:
    """Bags of tokens as a matrix or as one long row with offsets, some of them empty."""
    mode = draw(st.sampled_from(("sum", "mean", "max")))
    flat, last, weighted = draw(st.booleans()), draw(st.booleans()), mode == "sum" and draw(st.booleans())
    padding = draw(st.none() | st.integers(0, VOCABULARY - 1))
    generator = draw(generators)
    bag = nn.EmbeddingBag(
        VOCABULARY, WIDTH, mode=mode, padding_idx=padding, include_last_offset=last and flat, scale_grad_by_freq=False
    )
    offsets = None
    if flat:
        sizes = torch.tensor(draw(st.lists(st.integers(0, 3), min_size=layout.examples, max_size=layout.examples)))
        tokens = torch.randint(VOCABULARY, (int(sizes.sum()),), generator=generator)
        stops = sizes.cumsum(0)
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), stops])[: None if last else -1]
    else:
        tokens = torch.randint(VOCABULARY, (layout.examples, draw(st.integers(1, 3))), generator=generator)
    weights = torch.randn(tokens.shape, generator=generator) if weighted else None
    x = (tokens, offsets, weights)
    return Network(randomize(Bags(bag), generator), x, covered=mode != "max", vectorized=False)

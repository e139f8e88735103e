"""A BERT, a ViT and an LSTM, small and of torch's own parts."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ._case import OUTPUTS

WIDTH, HEADS, VOCABULARY, LENGTH = 8, 2, 11, 5


class SelfAttention(nn.Module):
    """Several heads, with query, key and value as layers of their own as in BERT."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, h: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (layer(h).unflatten(2, (HEADS, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :])
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class BertLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = SelfAttention()
        self.first, self.second = nn.LayerNorm(WIDTH, eps=1e-12), nn.LayerNorm(WIDTH, eps=1e-12)
        self.inner, self.outer = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, h: Tensor, mask: Tensor) -> Tensor:
        h = self.first(h + self.attention(h, mask))
        out: Tensor = self.second(h + self.outer(F.gelu(self.inner(h))))
        return out


class Bert(nn.Module):
    """Word, position and segment embeddings, padding masked, a pooler, and a word head that shares the word table."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)
        self.positions, self.segments = nn.Embedding(LENGTH, WIDTH), nn.Embedding(2, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.layers = nn.ModuleList([BertLayer(), BertLayer()])
        self.pooler, self.classifier = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, OUTPUTS)
        self.transform, self.decoder = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.decoder.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        segments = (tokens.cumsum(1) > 10).long()
        places = torch.arange(tokens.shape[1], device=tokens.device)[None]
        h = self.norm(self.words(tokens) + self.positions(places) + self.segments(segments))
        for layer in self.layers:
            h = layer(h, tokens != 0)
        words = self.decoder(F.gelu(self.transform(h))).log_softmax(2)
        out: Tensor = self.classifier(self.pooler(h[:, 0]).tanh()) + words.mean(1)[:, :OUTPUTS]
        return out


class VitLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, h: Tensor) -> Tensor:
        x = self.first(h)
        h = h + self.attention(x, x, x, need_weights=False)[0]
        out: Tensor = h + self.mlp(self.second(h))
        return out


class Vit(nn.Module):
    """Patches by a convolution, a class token and positions as bare parameters, packed attention."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 4, stride=4)
        self.token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.positions = nn.Parameter(torch.zeros(1, 5, WIDTH))
        self.layers = nn.Sequential(VitLayer(), VitLayer())
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, OUTPUTS)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patches(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.token.expand(len(h), -1, -1), h], 1) + self.positions
        out: Tensor = self.head(self.norm(self.layers(h))[:, 0])
        return out


class Lstm(nn.Module):
    """Two layers in both directions over embedded tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.lstm = nn.LSTM(WIDTH, 6, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(12, OUTPUTS)

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.head(self.lstm(self.words(tokens))[0][:, -1])
        return out

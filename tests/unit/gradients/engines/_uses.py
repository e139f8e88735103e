"""Networks whose parameters come to the examples outside of layers, in every way there is."""

from unittest import mock

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from classgrad import ClassGradients, Normalize

from .._reference import batch, cross_entropy

TOKENS, WIDTH = 3, 4


class Spread(nn.Module):
    """A network over tokens; ``use(model, h)`` makes use of what its examples share."""

    def __init__(self, use, examples=8):
        super().__init__()
        self.use = use
        self.inward, self.outward = nn.Linear(4, TOKENS * WIDTH), nn.Linear(WIDTH, 3)
        self.table = nn.Embedding(5, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.places = nn.Parameter(torch.randn(1, TOKENS, WIDTH))
        self.rows = nn.Parameter(torch.randn(5, WIDTH))
        self.scale = nn.Parameter(torch.randn(WIDTH))
        self.number = nn.Parameter(torch.tensor(1.5))
        self.many = nn.Parameter(torch.randn(examples, TOKENS, WIDTH))
        self.turned = nn.Parameter(torch.randn(WIDTH, TOKENS))
        self.heads = nn.Parameter(torch.randn(2, 2, 2))
        self.kernel = nn.Parameter(torch.randn(WIDTH, 2, 3))
        self.attention = nn.MultiheadAttention(WIDTH, 2, add_bias_kv=True)
        self.encoder = nn.TransformerEncoderLayer(WIDTH, 2, 5, dropout=0.0)
        self.cell, self.gru = nn.GRUCell(WIDTH, WIDTH), nn.GRU(WIDTH, 2, bidirectional=True)
        self.normed = parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))

    def forward(self, x):
        h = self.inward(x).unflatten(1, (TOKENS, WIDTH))
        return self.outward(torch.tanh(self.use(self, h)).mean(1))


def spread(use):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Spread(use).double()


def token(m, h):
    return torch.cat((m.places[:, :1].expand(len(h), -1, -1), h), 1)


def rows_of(m, h, *numbers):
    """Rows of the table."""
    return m.table(torch.tensor(numbers, device=h.device))


def positions(m, h):
    return h + rows_of(m, h, *range(TOKENS))[None]


def root_mean_square(m, h):
    return m.scale * (h * h.square().mean(-1, keepdim=True).add(1e-6).rsqrt())


def twice(m, h):
    h = h + m.rows[:TOKENS]
    return torch.tanh(h) * m.rows[1:4] + m.number


def mean(m, h):
    """What is added to all examples depends on all of them, but no row of the sum on another."""
    return h + (h.detach() @ m.rows[:WIDTH]).mean(0)


def square(m):
    return m.rows[:WIDTH]


def across(use):
    """Use it on tokens that come before the examples."""
    return lambda m, h: use(m, h.transpose(0, 1)).transpose(0, 1)


def lookup(m, h):
    """Which of the table's rows depends on the example; the padding is among them."""
    return m.table(h.detach().sum(2).mul(10).long() % 5)


SPREAD = {
    "token": token,
    "positions": lambda m, h: h + m.places,
    "positions, first": lambda m, h: m.places + h,
    "rows": lambda m, h: h + m.rows[1:4],
    "transposed": lambda m, h: h * m.turned.t(),
    "transposed otherwise": lambda m, h: h * m.turned.T + m.turned.mT,
    "with what it is added to, of which nothing comes yet": lambda m, h: h + 0.0 * (h.mean(0) @ square(m)),
    "table": positions,
    "table looked up with a dimension for the batch": lambda m, h: h + m.table(torch.arange(3, device=h.device)[None]),
    "table behind a layer": lambda m, h: h + m.norm(rows_of(m, h, 0, 2, 2)),
    "table, two places": lambda m, h: (h + m.table.weight[0]) * rows_of(m, h, 1, 1, 3),
    "scale": lambda m, h: h * m.scale,
    "scale, first": root_mean_square,
    "number": lambda m, h: h * m.number,
    "number from several": lambda m, h: h * (m.number * m.scale.sum()) + m.places.exp(),
    "expanded": lambda m, h: h * m.places.expand(len(h), -1, -1).sigmoid(),
    "expanded from fewer dimensions": lambda m, h: h + m.scale.expand(len(h), TOKENS, -1).sin(),
    "repeated": lambda m, h: h * m.places.repeat(len(h), 1, 1).sin(),
    "the same twice": twice,
    "as it is and behind an operation": lambda m, h: h * m.scale + m.scale.sin(),
    "mean": mean,
    "scaled before it is added": lambda m, h: torch.add(h, m.places, alpha=2),
    "subtracted": lambda m, h: m.scale - (h - m.places),
    "scaled before it is subtracted": lambda m, h: torch.sub(h, m.places, alpha=2),
    "divided by": lambda m, h: h / (m.scale.exp() + 1),
    "divided": lambda m, h: m.places / (h.square() + 1) - m.number / (h.exp() + 1),
    "scaled, and a mean of that": lambda m, h: h + (h.detach() * m.scale).mean(0),
    "tokens first": across(lambda m, h: h * m.scale + m.places.transpose(0, 1)),
    "normalized": lambda m, h: F.layer_norm(h, (WIDTH,), m.scale, m.rows[0]),
    "normalized in groups": lambda m, h: F.group_norm(h.mT, 2, m.scale, m.rows[0]).mT,
    "normalized, tokens first": across(lambda m, h: m.norm(h)),
}
PRODUCTS = {
    "matrix": lambda m, h: h @ square(m),
    "transposed": lambda m, h: F.linear(h, square(m)),
    "transposed, as it is": lambda m, h: h @ m.turned @ m.turned.T,
    "with a bias": lambda m, h: F.linear(h, square(m), m.scale),
    "a layer's weight and bias": lambda m, h: (
        F.linear(m.normed(h), m.outward.weight @ square(m), m.outward.bias) @ m.rows[:3]
    ),
    "on the left": lambda m, h: (square(m) @ h.mT).mT,
    "on the left of a matrix": lambda m, h: (square(m) @ h.flatten(0, 1).T).T.view_as(h),
    "scaled product and more": lambda m, h: torch.addmm(m.scale, h.flatten(0, 1), square(m), beta=2, alpha=3).view_as(
        h
    ),
    "more and a product, on the left": lambda m, h: torch.addmm(
        m.scale[:, None], square(m), h.flatten(0, 1).T, alpha=2
    ).T.view_as(h),
    "einsum": lambda m, h: torch.einsum("btd,od->bto", h, square(m)),
    "batch of matrices": lambda m, h: torch.bmm(h, square(m).expand(len(h), -1, -1)),
    "several matrices": lambda m, h: torch.einsum("bthd,hde->bthe", h.unflatten(2, (2, 2)), m.heads).flatten(2),
    "several, on the left": lambda m, h: (
        (m.heads @ h.flatten(0, 1).unflatten(1, (2, 2)).permute(1, 2, 0)).permute(2, 0, 1).reshape(h.shape)
    ),
    "vector": lambda m, h: (h @ m.scale).softmax(1)[..., None] * h,
    "vector of a matrix": lambda m, h: h * (h.mean(1) @ m.scale)[:, None, None],
    "tokens first": across(lambda m, h: h @ square(m)),
    "layer, tokens first": across(lambda m, h: m.normed(h)),
    "layer of single vectors": lambda m, h: torch.stack([m.outward(h[:, i]) for i in range(3)], 1) @ m.rows[:3],
    "spread, and a matrix": lambda m, h: (h + m.rows[0]) @ square(m),
    "spread beside a matrix": lambda m, h: (h + m.places) @ square(m),
    "made once for two": lambda m, h: (lambda w: h @ w + h.cos() @ w)(square(m).tanh()),
    "made of a product": lambda m, h: h @ (square(m) @ square(m).T).tanh(),
    "looked up": lambda m, h: h + lookup(m, h),
    "looked up in columns": lambda m, h: h @ F.embedding(h.detach().argmax(2) % 3, m.turned.t()).mT @ m.turned.T,
    "looked up with padding": lambda m, h: h + F.embedding(h.detach().argmax(2), m.rows, padding_idx=1),
    "looked up, tokens first": across(lambda m, h: h + lookup(m, h)),
    "looked up, and multiplied": lambda m, h: (h + lookup(m, h)) @ m.table.weight[:WIDTH],
    "convolution": lambda m, h: F.conv1d(h.mT, m.kernel, m.scale, groups=2, padding=1).mT,
    "convolution, sums": lambda m, h: F.conv1d(h.mT, m.kernel.tanh(), m.scale.sin(), groups=2, padding=1).mT,
    "transposed convolution": lambda m, h: F.conv_transpose1d(h.mT, m.kernel, padding=1).mT @ m.rows[:2],
    "attention": across(lambda m, h: m.attention(h, h, h, need_weights=False)[0]),
    "encoder": across(lambda m, h: m.encoder(h)),
    "recurrent cell": lambda m, h: torch.stack((m.cell(h[:, 0]), m.cell(h[:, 1], h[:, 0]), h[:, 2]), 1),
    "recurrent": across(lambda m, h: m.gru(h)[0]),
}
PER_CLASS = {
    "one for each example": lambda m, h: h + m.many,
    "an operation nothing is known of": lambda m, h: F.prelu(h.mT, m.scale).mT,
    "sparse": lambda m, h: h + torch.sparse.mm(h.detach()[:, 0].to_sparse(), square(m))[:, None],
    "checkpoint": lambda m, h: checkpoint(lambda h: torch.tanh(h @ square(m)) * m.scale, h, use_reentrant=False),
    "one place behind the other": lambda m, h: (lambda s: s + s.mean(0))(h + m.places),
}
KNOWN = {**SPREAD, **{f"product: {name}": use for name, use in PRODUCTS.items()}}
ALL = KNOWN | PER_CLASS


def passes(model, y):
    """Return how many times the second step sends losses back."""
    (x, _), counts = batch(), []
    grads = ClassGradients(model, Normalize())
    whole = torch.autograd.grad
    for _ in range(2):
        losses = cross_entropy(model(x), y)
        with mock.patch("torch.autograd.grad", wraps=whole) as made:
            grads.backward(losses, y)
        counts.append(sum(call.args[0] is losses for call in made.call_args_list))
    return counts[-1]

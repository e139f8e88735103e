"""Pieces of a step that are replayed: the same bits as launched one by one, whatever moves between steps."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from classgrad import ClassGradients

from ._acted_graphs import Acted

EXAMPLES = 48
LABELS = torch.tensor([0, 2, 1, 0, 2, 0, 0, 1, 0, 2, 0, 0] * 4)


class Tokens(nn.Module):
    def __init__(self, classes=3):
        super().__init__()
        self.table = nn.Embedding(7, 6)
        self.norm = nn.LayerNorm(6)
        self.inner = nn.Linear(6, 9)
        self.head = nn.Linear(9, classes)

    def forward(self, x):
        return self.head(torch.tanh(self.inner(self.norm(self.table(x)))).mean(1))


def convolutional(classes=3):
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.Conv2d(4, 6, 3, stride=2),
        nn.Flatten(),
        nn.Linear(54, classes),
    )


def images(step):
    return torch.randn(EXAMPLES, 2, 8, 8, generator=torch.Generator().manual_seed(step)).double()


def tokens(step):
    return torch.randint(0, 7, (EXAMPLES, 5), generator=torch.Generator().manual_seed(step))


MODELS = {"convolutional": (convolutional, images), "tokens": (Tokens, tokens)}


def acted(model, rule=None, **settings):
    grads = ClassGradients(model, rule, **settings)
    recorder = grads._single._replays._recorder = Acted()
    return grads, recorder


def steps(model, grads, inputs, count=12, labels=lambda step: LABELS, between=lambda step: None):
    """Train, with the step's record and gradients after every step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(count):
        x, y = inputs(step), labels(step)
        losses = F.cross_entropy(model(x), y, reduction="none")
        with grads._single._replays._recorder.step():
            made = grads.backward(losses, y)
        yield made, [p.grad.clone() for p in model.parameters()]
        optimizer.step()
        optimizer.zero_grad()
        between(step)


def same(one, other):
    for name in ("classes", "counts", "losses", "weights", "finite", "norms"):
        assert getattr(one[0], name).equal(getattr(other[0], name)), name
    for mine, theirs in zip(one[1], other[1], strict=True):
        assert mine.equal(theirs)


@pytest.mark.parametrize("name", MODELS)
def test_replays_are_what_is_launched_one_by_one(name):
    make, inputs = MODELS[name]
    model = make().double()
    twin = copy.deepcopy(model)
    grads, recorder = acted(model)
    plain, never = acted(twin)
    never.rests = True
    for one, other in zip(steps(model, grads, inputs), steps(twin, plain, inputs), strict=True):
        same(one, other)
    assert recorder.made > 3
    print(recorder.made, recorder.replayed)
    assert recorder.replayed > 3 * recorder.made

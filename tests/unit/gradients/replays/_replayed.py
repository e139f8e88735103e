"""Steps with recordings acted out, compared with steps that are never recorded and with a pass per class."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

from classgrad import ClassGradients

from ._acted_graphs import Acted

LABELS = torch.tensor([0, 2, 1, 0, 2, 0, 0, 1, 0, 2, 0, 0])
GROUPED = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2])


class Tokens(nn.Module):
    def __init__(self, classes=3):
        super().__init__()
        self.table = nn.Embedding(7, 6)
        self.norm = nn.LayerNorm(6)
        self.inner = nn.Linear(6, 9)
        self.head = nn.Linear(9, classes)

    def forward(self, x):
        return self.head(torch.tanh(self.inner(self.norm(self.table(x)))).mean(1))


class Named(nn.Module):
    """A layer that is never recorded, since it is called by the name of its input, among others that are."""

    def __init__(self):
        super().__init__()
        self.first, self.named, self.last = nn.Linear(5, 7), nn.Linear(7, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.last(torch.tanh(self.named(input=torch.tanh(self.first(x.to(self.first.weight.dtype))))))


class Mixed(nn.Module):
    """What can be recorded beside what cannot: a layer used twice, a parameter of its own, padding, a sequence."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 6, padding_idx=0)
        self.twice = nn.Linear(6, 6)
        self.scale = nn.Parameter(torch.ones(6))
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        x = torch.tanh(self.twice(self.table(x)))
        return self.head((self.twice(x) * self.scale).mean(1))


class Outside(nn.Module):
    """Layers beside matrices and a table of no layer, one of which is made of another."""

    def __init__(self):
        super().__init__()
        self.table, self.norm = nn.Parameter(torch.randn(7, 6)), nn.LayerNorm(6)
        self.inner, self.head, self.matrix = nn.Linear(6, 9), nn.Linear(6, 3), nn.Parameter(torch.randn(9, 6))

    def forward(self, x):
        h = torch.tanh(self.inner(self.norm(F.embedding(x, self.table))))
        return self.head((h @ self.matrix + self.table[:1].exp()).mean(1))


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
    return torch.randn(12, 2, 8, 8, generator=torch.Generator().manual_seed(step)).double()


def tokens(step):
    return torch.randint(0, 7, (12, 5), generator=torch.Generator().manual_seed(step))


MODELS = {
    "convolutional": (convolutional, images),
    "tokens": (Tokens, tokens),
    "mixed": (Mixed, tokens),
    "named": (Named, tokens),
    "outside": (Outside, tokens),
}


def acted(model, rule=None, **settings):
    grads = ClassGradients(model, rule, **settings)
    recorder = grads._single._replays._recorder = Acted()
    return grads, recorder


def steps(model, grads, inputs, labels=lambda step: LABELS.roll(step), before=lambda step: None, count=12):
    """Train; yield the step's record and gradients after every step."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05)
    for step in range(count):
        before(step)
        x, y = inputs(step), labels(step)
        losses = F.cross_entropy(model(x), y, reduction="none")
        grads._single._replays._recorder.begin()
        made = grads.backward(losses, y)
        yield made, [None if p.grad is None else p.grad.clone() for p in model.parameters()]
        optimizer.step()
        optimizer.zero_grad()


def same(one, other):
    """Whether all is the same to the last bit, what is not a number or not there included."""
    if one is None or other is None:
        return one is other
    return one.shape == other.shape and bool(((one == other) | (one.isnan() & other.isnan())).all())


def check(
    name,
    before=None,
    rule=None,
    labels=lambda step: LABELS.roll(step),
    count=12,
    dtype=torch.float64,
    **settings,
):
    """Compare with steps that are never recorded, to the bit, and with a pass per class; return the recorder."""
    make, inputs = MODELS[name]
    torch.manual_seed(0)
    model = make().to(dtype)
    twin = copy.deepcopy(model)
    grads, recorder = acted(model, rule, **settings)
    plain, never = acted(twin, rule, **settings)
    never.rests = True
    ours = steps(model, grads, inputs, labels, before(recorder) if before else lambda step: None, count)
    theirs = steps(twin, plain, inputs, labels, count=count)
    for number, ((mine, gradients), (other, wanted)) in enumerate(zip(ours, theirs, strict=True)):
        for field in ("classes", "counts", "losses", "weights", "finite", "norms"):
            assert same(getattr(mine, field), getattr(other, field)), (number, field)
        for gradient, right in zip(gradients, wanted, strict=True):
            assert same(gradient, right), number
        if dtype == torch.float64 and number % 4 == 3:
            compare_with_passes(model, rule, inputs(number), labels(number), mine, gradients, settings.get("classes"))
    assert never.made == never.replayed == 0
    return recorder


def compare_with_passes(model, rule, x, y, step, gradients, classes):
    """Compare an exact step with one of a backward pass per class."""
    if step.norms is None:
        return
    model = copy.deepcopy(model)
    model.zero_grad()
    with ClassGradients(model, rule, engine="joint", norms=True, classes=classes) as grads:
        wanted = grads.backward(F.cross_entropy(model(x), y, reduction="none"), y)
    if not wanted.finite.all():
        return  # 0 × inf spoils the passes of the other classes too
    torch.testing.assert_close(step.norms, wanted.norms)
    for gradient, p in zip(gradients, model.parameters(), strict=True):
        torch.testing.assert_close(gradient, p.grad)


def moves(recorder):
    """Have all places move at every third step, at first, then some of them."""

    def move(step):
        often, once = (set(range(1, 40)), {3, 6, 9}) if step < 15 else ({1, 2}, set())
        recorder.moved = often if step % 3 == 2 else once if step == 10 else set()

    return move

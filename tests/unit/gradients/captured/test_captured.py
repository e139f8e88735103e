"""A recorded step does what the step itself does."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from classgrad import Bisect, ClassGradients, Normalize, Sum
from classgrad.gradients import CapturedStep, class_layout
from classgrad.models import resnet18, simple_cnn

from ..replays._acted_graphs import Acted


def directions(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def test_on_the_cpu_the_step_runs_and_overwrites():
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    x, y = torch.randn(6, 3).double(), torch.tensor([1, 0, 0, 0, 1, 0])

    def losses(a, b):
        return F.cross_entropy(model(a), b, reduction="none")

    grads = ClassGradients(model)
    captured = CapturedStep(grads, losses)
    captured(x, y)
    step = captured(x, y)
    found = directions(model)
    model.zero_grad()
    expected = grads.backward(losses(x, y), y)
    torch.testing.assert_close(found, directions(model))
    torch.testing.assert_close(step.norms, expected.norms)
    assert step.counts.tolist() == [4, 2]


class Recorded:
    """Stands in for recordings: acts them out."""

    def __init__(self):
        self._acted = Acted()
        self._made = {}

    def __call__(self, key, function, x):
        if key not in self._made:
            self._made[key] = None
            return function(x)
        if self._made[key] is None:
            static = x.clone()
            self._made[key] = static, *self._acted._capture(lambda: function(static))
        static, replay, made = self._made[key]
        static.copy_(x)
        replay()
        return made


def test_a_rule_that_comes_back_is_recorded_anew():
    """What remembered norms under it before is gone, and old recordings would go on writing to that."""
    torch.manual_seed(0)
    rules = [Normalize(refresh=4, drift=1e9), Sum()]
    models = [nn.Linear(5, 3).double()]
    models.append(copy.deepcopy(models[0]))
    y = torch.arange(3).repeat_interleave(4)
    ours, theirs = (ClassGradients(model, rules[0], classes=3) for model in models)
    captured = CapturedStep(ours, lambda a, b: F.cross_entropy(models[0](a), b, reduction="none"))
    captured._recordings = Recorded()
    layout = class_layout(y, ours.classes)
    layout.prepare()
    for number in range(30):
        ours.rule = theirs.rule = rules[number // 10 % 2]
        x = torch.randn(12, 5).double()
        made, found = captured._replayed("alike", x, y, layout)
        ours.made(made, layout)
        models[1].zero_grad()
        expected = theirs.backward(F.cross_entropy(models[1](x), y, reduction="none"), y)
        assert (made.norms is None) == (expected.norms is None)
        torch.testing.assert_close(made.weights, expected.weights)
        for gradient, p in zip(found.values(), models[1].parameters(), strict=True):
            torch.testing.assert_close(gradient, p.grad)


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.norm(self.table(x))).mean(1))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("rule", [Normalize(), Sum(), Bisect()], ids=repr)
@pytest.mark.parametrize("make", [lambda: simple_cnn(3), lambda: resnet18(3), Words], ids=["cnn", "resnet", "words"])
def test_a_replay_equals_the_step(make, rule):
    torch.manual_seed(0)
    words = make is Words
    if words and isinstance(rule, Bisect):
        pytest.skip("the Gram of an embedding looks up how many tokens there are")
    model = make().double().cuda()

    def losses(a, b):
        return F.cross_entropy(model(a), b, reduction="none")

    grads = ClassGradients(model, rule, classes=3)
    captured = CapturedStep(grads, losses)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for counts in ([4, 2, 2], [3, 3, 2], [4, 2, 2], [5, 0, 3]):
        y = torch.arange(3).repeat_interleave(torch.tensor(counts))[torch.randperm(8)]
        x = torch.randint(0, 20, (8, 5)).cuda() if words else torch.randn(8, 3, 32, 32).double().cuda()
        step = captured(x, y)
        found, norms = directions(model), step.norms
        model.zero_grad()
        expected = grads.backward(losses(x, y.cuda()), y.cuda())
        torch.testing.assert_close(found, directions(model), rtol=1e-9, atol=1e-12)
        if norms is not None:
            torch.testing.assert_close(norms, expected.norms, rtol=1e-9, atol=1e-12)
        optimizer.step()
        optimizer.zero_grad()
        optimizer.param_groups[0]["lr"] *= 0.9

"""Every algorithm's first iterates against a straight transcription of its pseudo-code (paper, App. E)."""

import copy
import math

import pytest
import torch
from torch.nn import functional as F

from classgrad.data import gaussian_classes
from classgrad.training import ALGORITHMS, RunSpec
from classgrad.training._trainer import Trainer

STEPS, LR = 20, 0.07
DATA = gaussian_classes([40, 12, 5], dimension=6, overlap=0.1, seed=3)


def class_gradient(model, x, y, label, n):
    """∇f^(l) = 1/n Σ over the examples of class l, by autograd alone."""
    losses = F.cross_entropy(model(x[y == label]), y[y == label], reduction="sum") / n
    return torch.cat([g.flatten() for g in torch.autograd.grad(losses, list(model.parameters()))])


def move(model, direction, lr=LR):
    start = 0
    with torch.no_grad():
        for p in model.parameters():
            p -= lr * direction[start : start + p.numel()].view_as(p)
            start += p.numel()


def gd(model, x, y, batches):
    for _ in batches:
        gradients = [class_gradient(model, x, y, label, len(y)) for label in range(3)]
        move(model, sum(gradients))
        yield model


def pcngd(model, x, y, batches):
    for _ in batches:
        gradients = [class_gradient(model, x, y, label, len(y)) for label in range(3)]
        move(model, sum(g / g.norm() for g in gradients))
        yield model


def sgd(model, x, y, batches):
    for batch in batches:
        loss = F.cross_entropy(model(x[batch]), y[batch])
        move(model, torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))]))
        yield model


def pcnsgd(model, x, y, batches):
    for batch in batches:
        gradients = [class_gradient(model, x[batch], y[batch], label, len(batch)) for label in range(3)]
        move(model, sum(g / g.norm() for g in gradients))
        yield model


def pcnsgd_r(model, x, y, batches, every=5):
    for t, batch in enumerate(batches):
        if t % every == 0:
            full = [class_gradient(model, x, y, label, len(y)) for label in range(3)]
        direction = 0
        for label in range(3):
            g = class_gradient(model, x[batch], y[batch], label, len(batch))
            p = (g / g.norm()) @ (full[label] / full[label].norm())
            if p > 0:
                direction = direction + g / (max(p, 0.1) * g.norm())  # the rule's floor and what it does below zero
        move(model, direction)
        yield model


def bisection(model, x, y, batches):
    for _ in batches:
        gradients = [class_gradient(model, x, y, label, len(y)) for label in range(3)]
        bisector = sum(g / g.norm() for g in gradients)
        move(model, bisector / bisector.norm() * sum(gradients).norm())
        yield model


PSEUDO_CODE = {
    "gd": gd,
    "pcngd": pcngd,
    "sgd": sgd,
    "pcnsgd": pcnsgd,
    "pcnsgd+r": pcnsgd_r,
    "sgd+o": sgd,  # Alg. 4: the same update, on batches of equal classes
    "pcnsgd+o": pcnsgd,  # Alg. 3
    "r-pcngd": pcngd,
    "bisection": bisection,
}


def spec(name, **more):
    return RunSpec(
        "gaussian", name, lr=LR, steps=STEPS, batch_size=19, precision="float64", device="cpu", seed=1, **more
    )


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()]).clone()


def iterates(trainer):
    """The trainer's iterates and the batches it drew."""
    points, batches = [flat(trainer.model)], []
    for _ in range(STEPS):
        batches.append(trainer.next_batch())
        trainer.update(batches[-1])
        points.append(flat(trainer.model))
    return torch.stack(points), batches


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("chunk", [4096, 7])
def test_twenty_iterates_follow_the_pseudo_code(name, chunk):
    trainer = Trainer(spec(name, chunk=chunk, model_options={"hidden": [8]}), DATA, torch.device("cpu"))
    model = copy.deepcopy(trainer.model)
    x, y = trainer.train.batch(torch.arange(len(DATA.train)))
    mine, batches = iterates(trainer)
    theirs = torch.stack([flat(model), *(flat(m) for m in PSEUDO_CODE[name](model, x, y, batches))])
    assert (mine[1:] - mine[:-1]).norm(dim=1).min() > 1e-4
    torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("name", "counts"),
    [("pcnsgd", [13, 4, 2]), ("pcnsgd+r", [13, 4, 2]), ("sgd+o", [6, 6, 6]), ("pcnsgd+o", [6, 6, 6])],
)
def test_batches_are_those_of_the_pseudo_code(name, counts):
    trainer = Trainer(spec(name), DATA, torch.device("cpu"))
    seen = []
    for _ in range(STEPS):
        batch = trainer.next_batch()
        assert torch.bincount(DATA.train.y[batch], minlength=3).tolist() == counts
        seen.append(batch)
    minority = torch.cat([batch[DATA.train.y[batch] == 2] for batch in seen])
    for start in range(0, len(minority) - 4, 5):  # reshuffled when used up: all five before any comes again
        assert len(set(minority[start : start + 5].tolist())) == 5


def test_full_batches_hold_every_example_once():
    trainer = Trainer(spec("gd"), DATA, torch.device("cpu"))
    for _ in range(3):
        assert sorted(trainer.next_batch().tolist()) == list(range(len(DATA.train)))


def test_sgd_draws_mixed_batches_without_replacement():
    trainer = Trainer(spec("sgd"), DATA, torch.device("cpu"))
    epoch = torch.cat([trainer.next_batch() for _ in range(math.ceil(57 / 19))])
    assert sorted(epoch.tolist()) == list(range(57))


def test_momentum_under_a_rule_is_torch_s_momentum():
    options = {"momentum": 0.9, "weight_decay": 0.01}
    trainer = Trainer(spec("pcngd", optimizer_options=options), DATA, torch.device("cpu"))
    model = copy.deepcopy(trainer.model)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, **options)
    x, y = trainer.train.batch(torch.arange(len(DATA.train)))
    mine, _ = iterates(trainer)
    for point in mine[1:]:
        gradients = [class_gradient(model, x, y, label, len(y)) for label in range(3)]
        direction, start = sum(g / g.norm() for g in gradients), 0
        for p in model.parameters():
            p.grad = direction[start : start + p.numel()].view_as(p).clone()
            start += p.numel()
        optimizer.step()
        torch.testing.assert_close(flat(model), point, rtol=0, atol=1e-10)

"""What makes the next step an exact one, sooner than the rule asks for."""

import math

import pytest
import torch
from torch import nn

from classgrad import ClassGradients, InputError, Normalize
from classgrad.gradients import _plain

from ._lazily import NEVER, kinds, setup, take
from ._reference import batch, cross_entropy, flat_grad, small_net


@pytest.mark.parametrize("factor", [2.0, 0.5, 10.0])
def test_a_loss_that_moved_makes_the_next_step_exact(factor):
    """Decided from the step before: the step in which it is first seen still goes by the old norms."""
    model, grads = setup(refresh=50, drift=1.9)
    x, y = batch()

    def step(scales):
        return grads.backward(cross_entropy(model(x), y) * torch.tensor(scales).double()[y], y)

    plain, moved = [1.0, 1.0, 1.0], [1.0, factor, 1.0]
    steps = [step(plain), step(plain), step(moved), step(moved), step(moved), step(plain), step(plain)]
    assert kinds(steps) == "ellelle"


@pytest.mark.parametrize(("before", "after"), [(0.0, 0.5), (0.5, 0.0), (0.5, -0.5)])
def test_a_loss_to_or_from_zero_or_across_it_has_moved(before, after):
    model, grads = setup(refresh=50, drift=100.0)
    x, y = batch()

    def step(mean):
        losses = cross_entropy(model(x), y)
        shift = torch.stack([losses[y == c].detach().mean() for c in range(3)])[y]
        return grads.backward(losses - shift + torch.where(y == 1, mean, 1.0), y)

    assert kinds([step(before), step(after), step(after), step(after)]) == "elel"


def test_drift_may_be_switched_off():
    model, grads = setup(refresh=4, drift=math.inf)
    x, y = batch()
    steps = [grads.backward(cross_entropy(model(x), y) * 10.0**n, y) for n in (0, 3, -3, 0, 0)]
    assert kinds(steps) == "ellle"


def test_a_class_that_has_no_norm_yet():
    grads = setup()[1]
    x, y = batch(9)
    rest = (y != 1).nonzero().flatten()
    steps = [take(grads, x[rest], y[rest])[0], take(grads, x[rest], y[rest])[0], take(grads, x, y)[0]]
    steps += [take(grads, x, y)[0], take(grads, x[rest], y[rest])[0]]
    assert kinds(steps) == "elele"  # without `classes` any other set of classes is a new one


def test_declared_classes_may_be_absent_in_between():
    grads = setup(classes=3)[1]
    x, y = batch(9)
    rest = (y != 1).nonzero().flatten()
    norms = take(grads, x, y)[0].norms
    step, direction, gradients = take(grads, x[rest], y[rest])
    assert step.norms is None
    assert step.skipped == {1: "missing"}
    assert step.weights[1] == 0
    torch.testing.assert_close(direction, (gradients / norms[[0, 2], None] * 6 / 9).sum(0))
    assert take(grads, x, y)[0].norms is None
    other = small_net()
    late = ClassGradients(other, Normalize(refresh=9, drift=NEVER), classes=3)
    steps = [take(late, x[rest], y[rest])[0], take(late, x[rest], y[rest])[0], take(late, x, y)[0]]
    assert kinds(steps) == "ele"


@pytest.mark.parametrize(("drift", "expected"), [(1.4, "ee"), (1.6, "el")])
def test_a_class_whose_size_changed(drift, expected):
    grads = setup(drift=drift)[1]
    x, y = batch(9)
    fewer = torch.arange(9)[y != 1].tolist() + (y == 1).nonzero().flatten()[:2].tolist()  # 2 of 3: a factor of 1.5
    assert kinds([take(grads, x, y, move=0.0)[0], take(grads, x[fewer], y[fewer], move=0.0)[0]]) == expected


def test_other_trained_parameters():
    model, grads = setup()
    x, y = batch()
    steps = [take(grads, x, y)[0], take(grads, x, y)[0]]
    model[0].weight.requires_grad_(False)
    steps += [take(grads, x, y)[0], take(grads, x, y)[0]]
    model[0].weight.requires_grad_(True)
    steps += [take(grads, x, y)[0]]
    assert kinds(steps) == "elele"


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_a_loss_that_is_not_finite(value):
    model, grads = setup()
    x, y = batch()

    def step(bad):
        model.zero_grad()
        made = grads.backward(cross_entropy(model(x), y) * torch.where(y == 1, bad, 1.0), y)
        assert flat_grad(model).isfinite().all()
        return made

    steps = [step(1.0), step(1.0), step(value), step(value), step(1.0), step(1.0)]
    assert kinds(steps) == "eleeel"  # exact at once, as long as it lasts, and until the class has a norm again
    assert steps[2].skipped == {1: "nonfinite"}
    assert step(1.0).skipped == {}


class Pole(nn.Module):
    """Finite at zero, where its gradient is not."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(1, dtype=torch.float64))

    def forward(self, x):
        return (self.w * x).sqrt()


def test_a_gradient_that_is_not_finite_loses_a_step_and_the_next_is_exact():
    model = Pole()
    grads = ClassGradients(model, Normalize(refresh=9, drift=math.inf))
    y = torch.tensor([0, 1])
    good, bad = torch.tensor([1.0, 4.0]).double(), torch.tensor([1.0, 0.0]).double()
    steps = []
    for x in (good, good, bad, good, good):
        model.zero_grad()
        steps.append(grads.backward(model(x), y))
        assert model.w.grad.isfinite().all()
    assert kinds(steps) == "ellel"
    assert not steps[2].finite.any()
    assert (steps[2].weights == 0).all()


@pytest.mark.parametrize("finite", [False, True])
def test_gradients_put_side_by_side_come_back_as_they_were(finite, monkeypatch):
    """As on a GPU, where each operation counts."""
    monkeypatch.setattr(_plain, "_SMALL", 50)
    made = {
        "small": torch.randn(3, 4),
        "alone of its kind": torch.randn(5, dtype=torch.float64),
        "large": torch.randn(8, 8),
        "empty": torch.randn(0, 3),
        "channels last": torch.randn(2, 3, 2, 2).contiguous(memory_format=torch.channels_last),
        "number": torch.randn(()),
        "sparse": torch.randn(4, 2).to_sparse(1),
        "small too": torch.randn(2, 2, 2),
    }
    direction = {nn.Parameter(g.to_dense()): g for g in made.values()}
    pieces = _plain._pieces(direction, join=True)
    assert len(pieces) == 6
    found = dict(part for piece in pieces for part in _plain._parts(*piece, torch.tensor(finite)))
    assert found.keys() == direction.keys()
    for p, gradient in direction.items():
        wanted = gradient.to_dense()
        assert (found[p].shape, found[p].dtype, found[p].stride()) == (wanted.shape, wanted.dtype, wanted.stride())
        torch.testing.assert_close(found[p], wanted * finite, rtol=0, atol=0)


def test_a_class_without_a_gradient_keeps_the_steps_exact():
    model, grads = setup()
    x, y = batch()
    steps = [grads.backward(cross_entropy(model(x), y) * (y != 1), y) for _ in range(3)]
    assert kinds(steps) == "eee"
    assert steps[2].skipped == {1: "zero"}


def test_after_a_step_that_failed_the_next_is_exact():
    model, grads = setup(on_nonfinite="error")
    x, y = batch()
    steps = [take(grads, x, y)[0], take(grads, x, y)[0]]
    with pytest.raises(InputError, match="on_nonfinite"):
        grads.backward(cross_entropy(model(x), y) * math.nan, y)
    assert grads.state_dict() == {}
    steps += [take(grads, x, y)[0], take(grads, x, y)[0]]
    assert kinds(steps) == "elel"

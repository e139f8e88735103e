"""Full batches of known make-up, class by class."""

from collections import UserDict
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from classgrad import ClassGradients, Normalize, Rescale, Sum
from classgrad.gradients import refresh_by_class, step_by_class

from ._reference import batch, cross_entropy, flat_grad, small_net

COUNTS = (7, 0, 4, 1)


def case():
    torch.manual_seed(0)
    y = torch.repeat_interleave(torch.arange(4), torch.tensor(COUNTS))
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4)).double(), torch.randn(12, 3).double(), y


def directions(model):
    found = torch.cat([p.grad.flatten() for p in model.parameters()])
    model.zero_grad()
    return found


@pytest.mark.parametrize("chunk", [1, 3, 100])
@pytest.mark.parametrize("rule", [Normalize(), Normalize(per="layer"), Sum()], ids=repr)
def test_the_step_is_that_of_the_whole_batch(rule, chunk):
    model, x, y = case()
    grads = ClassGradients(model, rule)
    expected = grads.backward(F.cross_entropy(model(x), y, reduction="none"), y)
    direction = directions(model)

    def losses_of(part):
        return F.cross_entropy(model(x[part]), y[part], reduction="none")

    step = step_by_class(grads, losses_of, torch.arange(12), COUNTS, chunk)
    torch.testing.assert_close(directions(model), direction)
    assert step.classes.tolist() == [0, 2, 3]
    assert step.counts.tolist() == [7, 4, 1]
    torch.testing.assert_close(step.losses, expected.losses)
    torch.testing.assert_close(step.weights, expected.weights.to(step.weights))


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_a_refresh_is_that_of_the_whole_batch_and_stays_where_it_is(chunk):
    model, x, y = case()

    def losses_of(part):
        return F.cross_entropy(model(x[part]), y[part], reduction="none")

    found = []
    for way in ("all", "by class"):
        grads = ClassGradients(model, Rescale())
        if way == "all":
            grads.refresh(lambda part, _: losses_of(part), [(torch.arange(12), y)])
        else:
            refresh_by_class(grads, losses_of, torch.arange(12), COUNTS, chunk)
            kept = grads._reference[3]
            refresh_by_class(grads, losses_of, torch.arange(12), COUNTS, chunk)
            assert all(kept[p] is grads._reference[3][p] for p in model.parameters())
        batch = torch.tensor([0, 1, 8, 11])
        found.append((grads.backward(losses_of(batch), y[batch]).projections, directions(model)))
        grads.close()
    torch.testing.assert_close(found[0], found[1])


def test_a_class_without_a_gradient_has_no_direction():
    model, x, y = case()
    grads = ClassGradients(model, Rescale())
    refresh_by_class(grads, lambda part: model(x[part]).sum(1) * (y[part] != 2), torch.arange(12), COUNTS, 5)
    norms = {
        label: torch.cat([u.flatten() for u in units.values()]).norm() for label, units in grads._reference.items()
    }
    assert norms[2] == 0
    assert float(norms[0]) == pytest.approx(1)


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


class Fields(dict):
    """A dictionary whose values are attributes too."""

    __getattr__ = dict.__getitem__


@pytest.mark.parametrize("chunk", [None, 2])
@pytest.mark.parametrize("kind", [Pair, Fields, UserDict])
def test_inputs_stay_of_their_kind(kind, chunk):
    model, (x, y) = small_net(), batch()
    given = {"left": x[:, :2], "right": x[:, 2:]}
    inputs = Pair(**given) if kind is Pair else kind(given)

    def loss(inputs, y):
        assert type(inputs) is kind
        left, right = (inputs["left"], inputs["right"]) if kind is UserDict else (inputs.left, inputs.right)
        return cross_entropy(model(torch.cat((left, right), 1)), y)

    ClassGradients(model).backward(cross_entropy(model(x), y), y)
    expected = flat_grad(model)
    model.zero_grad()
    ClassGradients(model).backward_through(loss, inputs, y, chunk=chunk)
    torch.testing.assert_close(flat_grad(model), expected)
    assert inputs["left"].shape == (8, 2) if kind is not Pair else inputs.left.shape == (8, 2)

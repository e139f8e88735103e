"""Operations that take or place rows by their numbers, which may mix the examples of one batch and not of the next."""

import pytest
import torch
from torch import nn

from classgrad import ClassGradients, InputError
from classgrad.gradients.engines._audit import probe

from .._reference import batch, cross_entropy, flat_grad, flat_gradients, small_net, unit_sum


def taken(h, rows):
    return h[rows]


def selected(h, rows):
    return h.index_select(0, rows)


def gathered(h, rows):
    return h.gather(0, rows[:, None].expand_as(h))


def put(h, rows):
    out = torch.zeros_like(h)
    out[rows] = h
    return out


def added(h, rows):
    return torch.zeros_like(h).index_add(0, rows, h)


@pytest.mark.parametrize("move", [taken, selected, gathered, put, added])
def test_rows_that_are_reordered_from_the_second_step_on(move):
    """An expert that every example is routed to is given them by their places among the choices."""
    model, (x, y) = small_net(), batch()
    grads = ClassGradients(model)

    def forward(rows):
        return cross_entropy(model[2](move(model[1](model[0](x)), rows)), y)

    def assert_exact(rows):
        gradients = flat_gradients(forward(rows), y, model.parameters())
        model.zero_grad()
        grads.backward(forward(rows), y)
        torch.testing.assert_close(flat_grad(model), unit_sum(gradients))

    assert_exact(torch.arange(8))
    assert_exact(torch.arange(8))
    with pytest.warns(UserWarning, match="Something after layer 0"):
        assert_exact(torch.arange(8).flip(0))
    assert_exact(torch.arange(8))  # a second warning would be an error


def test_losses_of_reordered_rows_that_were_used_already():
    model, (x, y) = small_net(), batch()
    grads, y = ClassGradients(model), torch.zeros_like(y)
    losses = cross_entropy(model(x)[torch.arange(8)], y)
    grads.backward(losses, y)
    with pytest.raises(InputError, match="run the forward again"):
        grads.backward(losses, y)


@pytest.mark.parametrize("number", [0, 1])
def test_pooling_by_number_is_probed_once(number, monkeypatch):
    """The last token of each example, or chosen columns, are no other order of the examples."""
    model, (x, y) = small_net(), batch()
    grads, probes = ClassGradients(model), []
    monkeypatch.setattr("classgrad.gradients.engines._engines.probe", lambda *a: probes.append(a) or probe(*a))
    rows = torch.arange(8)
    for _ in range(3):
        h = model[0](x)
        h = h[rows, rows % 5][:, None].expand(-1, 5) if number else h[:, rows % 5][:, :5]
        grads.backward(cross_entropy(model[2](h), y), y)
    assert len(probes) == 2  # for mixing of classes and within classes


def test_rows_of_a_parameter_are_probed_once(monkeypatch):
    """As many of them as there are examples, such as the center of each one's class."""
    model, (x, y) = small_net(), batch()
    model.register_parameter("centers", nn.Parameter(torch.randn(3, 5).double()))
    grads, probes = ClassGradients(model), []
    monkeypatch.setattr("classgrad.gradients.engines._engines.probe", lambda *a: probes.append(a) or probe(*a))

    def losses():
        h = model[1](model[0](x))
        return cross_entropy(model[2](h), y) + (h - model.centers[y]).square().sum(1)

    for _ in range(3):
        gradients = flat_gradients(losses(), y, model.parameters())
        model.zero_grad()
        grads.backward(losses(), y)
        torch.testing.assert_close(flat_grad(model), unit_sum(gradients))
    assert len(probes) == 2  # for mixing of classes and within classes

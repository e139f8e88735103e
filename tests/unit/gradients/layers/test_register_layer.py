"""Rules for layers of one's own."""

from unittest import mock

import pytest
import torch
from torch import nn

from classgrad import ClassGradients, InputError, register_layer
from classgrad.gradients.layers import _registry

from .._reference import batch, cross_entropy, flat_grad, flat_gradients, unit_sum


class Scale(nn.Module):
    """Multiplies each feature by a factor of its own and adds one number; keeps its output for its backward."""

    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.linspace(-1, 2, 4))
        self.shift = nn.Parameter(torch.tensor(0.3))

    def forward(self, x):
        return x * self.factor + self.shift


def scale_rule(module, x, b):
    return {"factor": x * b, "shift": b.sum(1)}


@pytest.fixture(autouse=True)
def _own_registry():
    with mock.patch.dict(_registry._RULES):
        yield


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
def test_a_registered_layer_takes_one_pass(inplace, frozen):
    register_layer(Scale, scale_rule, ("factor", "shift"))
    model = nn.Sequential(nn.Linear(4, 4), Scale(), nn.ReLU(inplace=inplace), nn.Linear(4, 3)).double()
    model[1].shift.requires_grad_(not frozen)
    x, y = batch()
    gradients = flat_gradients(cross_entropy(model(x), y), y, model.parameters())
    with mock.patch("classgrad.gradients.engines._fused.joint_terms", side_effect=AssertionError):
        ClassGradients(model).backward(cross_entropy(model(x), y), y)
    torch.testing.assert_close(flat_grad(model), unit_sum(gradients))


def test_without_a_rule_it_falls_back():
    model = nn.Sequential(Scale(), nn.Linear(4, 3)).double()
    x, y = batch()
    gradients = flat_gradients(cross_entropy(model(x), y), y, model.parameters())
    ClassGradients(model).backward(cross_entropy(model(x), y), y)
    torch.testing.assert_close(flat_grad(model), unit_sum(gradients))


def test_a_parameter_the_rule_does_not_name_falls_back():
    register_layer(Scale, lambda module, x, b: {"factor": x * b}, ("factor",))
    model = nn.Sequential(Scale(), nn.Linear(4, 3)).double()
    x, y = batch()
    gradients = flat_gradients(cross_entropy(model(x), y), y, model.parameters())
    ClassGradients(model).backward(cross_entropy(model(x), y), y)
    torch.testing.assert_close(flat_grad(model), unit_sum(gradients))


class Sigmoid(nn.Module):
    """Needs its own output in its backward."""

    def __init__(self):
        super().__init__()
        self.slope = nn.Parameter(torch.tensor([2.0]))

    def forward(self, x):
        return torch.sigmoid(x * self.slope)


def test_torch_still_notices_an_output_that_may_not_be_changed():
    register_layer(Sigmoid, lambda m, x, b: {"slope": (b * x).sum(1, keepdim=True)}, ("slope",))
    model = nn.Sequential(nn.Linear(4, 4), Sigmoid(), nn.ReLU(inplace=True), nn.Linear(4, 3)).double()
    x, y = batch()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        ClassGradients(model).backward(cross_entropy(model(x), y), y)


class Gate(nn.Module):
    """Takes its input under a name of its own."""

    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.ones(4))

    def forward(self, *, hidden):
        return hidden * self.factor


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.head = Gate(), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.gate(hidden=x))


def test_an_input_of_another_name():
    register_layer(Gate, lambda m, x, b: {"factor": x * b}, ("factor",))
    model = Gated().double()
    x, y = batch()
    gradients = flat_gradients(cross_entropy(model(x), y), y, model.parameters())
    with mock.patch("classgrad.gradients.engines._fused.joint_terms", side_effect=AssertionError):
        ClassGradients(model).backward(cross_entropy(model(x), y), y)
    torch.testing.assert_close(flat_grad(model), unit_sum(gradients))


class Constant(nn.Module):
    """Takes no input at all."""

    def __init__(self):
        super().__init__()
        self.value = nn.Parameter(torch.ones(8, 3))

    def forward(self):
        return self.value * 2


def test_a_layer_without_input_falls_back():
    register_layer(Constant, lambda m, x, b: {"value": b}, ("value",))
    model = nn.ModuleList([Constant()]).double()
    _, y = batch()
    gradients = flat_gradients(cross_entropy(model[0](), y), y, model.parameters())
    ClassGradients(model).backward(cross_entropy(model[0](), y), y)
    torch.testing.assert_close(flat_grad(model), unit_sum(gradients))


def test_a_rule_of_wrong_shapes_is_told():
    for rule, found in (
        (lambda m, x, b: {"factor": (x * b).sum(0), "shift": b.sum(1)}, r"`factor` with shape \(8, 4\). Found \(4,\)"),
        (lambda m, x, b: {"factor": x * b}, r"`shift` with shape \(8,\). Found None"),
    ):
        register_layer(Scale, rule, ("factor", "shift"))
        model = nn.Sequential(Scale(), nn.Linear(4, 3)).double()
        x, y = batch()
        with pytest.raises(
            InputError, match=rf"The layer rule of Scale should return per-example gradients of {found}"
        ):
            ClassGradients(model).backward(cross_entropy(model(x), y), y)


def test_a_wrong_rule_shows_in_verify():
    register_layer(Scale, lambda m, x, b: {"factor": 2 * x * b, "shift": b.sum(1)}, ("factor", "shift"))
    model = nn.Sequential(Scale(), nn.Linear(4, 3)).double()
    found = ClassGradients(model).verify(lambda x, y: cross_entropy(model(x), y), batch())
    assert found.largest == pytest.approx(1.0)
    assert found.errors["0.shift"] < 1e-12
    assert str(found) == "fused engine: largest relative error 1.0e+00 at 0.factor"


@pytest.mark.parametrize("layer", ["Scale", 3, int])
def test_only_modules_can_be_registered(layer):
    with pytest.raises(InputError, match=r"^Parameter `layer` should be a subclass of torch.nn.Module. Found"):
        register_layer(layer, scale_rule, ("factor",))


@pytest.mark.parametrize("names", ["factor", ()])
def test_names_are_a_tuple(names):
    with pytest.raises(InputError, match=r"^Parameter `parameters` should be a tuple of parameter names. Found"):
        register_layer(Scale, scale_rule, names)

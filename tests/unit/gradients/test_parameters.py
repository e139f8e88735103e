from torch import nn

from classgrad.gradients._parameters import own_parameters


def test_they_are_those_of_the_model_in_its_order():
    model = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 3, bias=False)), nn.Tanh())
    model.append(model[0])  # a layer used twice
    model.append(nn.Linear(3, 3))
    model[4].weight = model[1][1].weight  # tied weights
    model.register_parameter("own", nn.Parameter(model[0].bias.detach().clone()))
    model.register_module("nothing", None)
    assert [id(p) for p in own_parameters(model)] == [id(p) for p in model.parameters()]

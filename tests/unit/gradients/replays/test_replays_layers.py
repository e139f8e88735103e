"""Every layer beside one that is recorded and one that is not, replayed, against plain autograd."""

from unittest import mock

import pytest
import torch
from torch import nn

from classgrad import ClassGradients

from .._reference import flat_grad, flat_gradients, unit_sum
from ..layers.test_layers import EQUAL, FALLS_BACK, LAYERS, Y, losses_of, prepared
from ..layers.test_layers import pytestmark as warnings_of_layers
from ._acted_graphs import Acted

pytestmark = warnings_of_layers


class Beside(nn.Module):
    """A layer, another that can be recorded and one that never is."""

    def __init__(self, layer, x):
        super().__init__()
        self.layer = layer
        width = layer(x).flatten(1).shape[1]
        self.recorded, self.named = nn.Linear(width, 4).double(), nn.Linear(4, 3).double()

    def forward(self, x):
        out = self.layer(x)
        out = out.flatten(1) if out.dim() > 1 else out[:, None]
        return self.named(input=torch.tanh(self.recorded(out))) + out.sum(1, keepdim=True)


@pytest.mark.parametrize(("labels", "ghosts"), [(Y, False), (EQUAL, True)], ids=["unequal, kept", "equal, ghosts"])
@pytest.mark.parametrize("name", [*LAYERS, *FALLS_BACK])
def test_replays(name, labels, ghosts):
    layer, x = {**LAYERS, **FALLS_BACK}[name]
    model = prepared(Beside(layer.double(), x))
    recorder = Acted()
    with (
        mock.patch("classgrad.gradients.terms._scratch._SMALL", 100),
        mock.patch("classgrad.gradients.layers._linear.ghost_is_cheaper", return_value=ghosts),
        mock.patch("classgrad.gradients.layers._conv.ghost_is_cheaper", return_value=ghosts),
        ClassGradients(model, classes=[0, 1, 2, 3, 5]) as grads,
    ):
        grads._single._replays._recorder = recorder
        for number in range(6):
            losses = losses_of(model, x)
            gradients = flat_gradients(losses, labels, model.parameters())
            model.zero_grad()
            recorder.begin()
            step = grads.backward(losses, labels)
            found = flat_grad(model)
            torch.testing.assert_close(step.norms[step.counts > 0], gradients.norm(dim=1), rtol=1e-10, atol=1e-12)
            torch.testing.assert_close(found, unit_sum(gradients), rtol=1e-10, atol=1e-12)
            with torch.no_grad():
                for p in model.parameters():
                    p.mul_(1 + 0.01 * (number + 1))
    assert recorder.replayed > 0

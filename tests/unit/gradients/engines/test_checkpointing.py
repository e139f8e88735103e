"""Layers that run again in the backward pass: gradient checkpointing, reversible networks."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from classgrad import ClassGradients, InputError, Normalize, Sum

from .._reference import assert_exact, batch, cross_entropy, flat_grad, flat_gradients, unit_sum


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.reentrant = reentrant
        self.first = nn.Linear(4, 4)
        self.block = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.ReLU(), nn.GroupNorm(2, 4), nn.Linear(4, 4))
        self.lstm = nn.LSTM(4, 4, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        h = checkpoint(self.block, self.first(x), use_reentrant=self.reentrant)
        return self.head(checkpoint(lambda h: self.lstm(h[:, None])[0][:, 0], h, use_reentrant=self.reentrant))


@pytest.mark.parametrize("gram", [False, True])
def test_gradient_checkpointing_is_exact(gram):
    model, (x, y) = Checkpointed(reentrant=False).double(), batch()
    assert_exact(model, lambda: cross_entropy(model(x), y), y, gram=gram)


@pytest.mark.parametrize("engine", ["fused", "joint"])
@pytest.mark.parametrize("rule", [Normalize(), Sum()])
def test_reentrant_checkpointing_is_refused(engine, rule):
    model, (x, y) = Checkpointed(reentrant=True).double(), batch()
    with pytest.raises(InputError) as caught:
        ClassGradients(model, rule, engine=engine).backward(cross_entropy(model(x), y), y)
    assert str(caught.value).startswith(
        "Gradient checkpointing should use torch.utils.checkpoint with use_reentrant=False;"
    )
    assert "\n" not in str(caught.value)


class Again(torch.autograd.Function):
    """Runs a layer again in its backward pass and has that one write ``p.grad``, as reversible networks do."""

    @staticmethod
    def forward(ctx, x, layer):
        ctx.layer = layer
        ctx.save_for_backward(x)
        return layer(x)

    @staticmethod
    def backward(ctx, gradient):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            ctx.layer(x).backward(gradient)
        return x.grad, None


@pytest.mark.parametrize("rule", [Normalize(), Sum(), Normalize(refresh=2)])
def test_layers_that_the_graph_does_not_know_of_are_refused(rule):
    model, (x, y) = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)]).double(), batch()
    grads = ClassGradients(model, rule)
    for _ in range(2):
        with pytest.raises(InputError, match=r"^Layer `1` runs again in the backward pass") as caught:
            grads.backward(cross_entropy(model[2](Again.apply(model[0](x), model[1])), y), y)
        assert "\n" not in str(caught.value)
    cross_entropy(model[2](Again.apply(model[0](x), model[1])), y).sum().backward()
    grads.backward(cross_entropy(model[2](model[0](x)), y), y)  # what a backward pass of one's own ran is none of ours
    model[1].requires_grad_(False)
    grads.backward(cross_entropy(model[2](Again.apply(model[0](x), model[1])), y), y)


def test_saved_tensors_may_be_offloaded():
    model, (x, y) = Checkpointed(reentrant=False).double(), batch()
    with torch.autograd.graph.save_on_cpu():
        losses = cross_entropy(model.head(model.block(model.first(x))), y)
    expected = flat_gradients(losses, y, model.parameters())
    with torch.autograd.graph.save_on_cpu():
        grads = ClassGradients(model)
        losses = cross_entropy(model.head(model.block(model.first(x))), y)
    grads.backward(losses, y)
    torch.testing.assert_close(flat_grad(model), unit_sum(expected))

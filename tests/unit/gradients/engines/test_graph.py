"""Parameters are followed through the graph of every step: a use outside a layer's call is never missed."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from classgrad import ClassGradients, InputError
from classgrad.gradients.engines._graph import read_graph

from .._reference import assert_exact, batch, cross_entropy, flat_grad, flat_gradients, small_net, unit_sum

X, Y = batch()

FUNCTIONAL = {
    "linear": lambda net: F.linear(X, net[0].weight) @ net[2].weight.T,
    "matmul": lambda net: (X @ net[0].weight.T + net[0].bias) @ net[2].weight.T,
    "transposed twice": lambda net: net[2](X @ net[0].weight.t().contiguous()),
    "a call and a read": lambda net: net(X) + F.linear(X, net[0].weight)[:, :3],
    "a call and a read of the transpose": lambda net: net(X) + (X @ net[0].weight.t())[:, :3],
    "two reads of one transpose": lambda net: (lambda w: net(X) + (X @ w)[:, :3] + (X.cos() @ w)[:, :3])(
        net[0].weight.t()
    ),
    "a permuted read": lambda net: net(X) + (X @ net[0].weight.permute(1, 0))[:, :3],
    "a read of the bias": lambda net: net(X) + net[2].bias,
    "einsum": lambda net: net(X) * torch.einsum("ij,ij->", net[0].weight, net[0].weight),
    "an index": lambda net: net(X) * net[0].weight[0, 0],
}


@pytest.mark.parametrize("use", FUNCTIONAL)
def test_functional_uses_of_a_layers_weight(use):
    model = small_net()
    assert_exact(model, lambda: cross_entropy(FUNCTIONAL[use](model), Y), Y)


def test_the_use_may_change_from_step_to_step():
    """No step may rely on what another graph looked like."""
    model = small_net()
    grads = ClassGradients(model)
    losses = [
        lambda: cross_entropy(model(X), Y),
        lambda: cross_entropy(model(X), Y) + model[0].weight.square().sum(),
        lambda: cross_entropy(F.linear(model[0](X).tanh(), model[2].weight), Y),
        lambda: model(X).square().sum(1),
        lambda: cross_entropy(model(X), Y),
    ]
    for forward in losses:
        assert_exact(model, forward, Y, grads)


def test_a_call_outside_the_graph_does_not_hide_a_read():
    model = small_net()
    with ClassGradients(model) as grads:
        kept = model(X)
        assert_exact(model, lambda: cross_entropy(model(X) + F.linear(X, model[0].weight)[:, :3], Y), Y, grads)
    assert kept.grad_fn is not None


def test_a_call_whose_output_is_thrown_away_or_detached():
    model = small_net()
    assert_exact(model, lambda: cross_entropy(model(X) + model(X).detach(), Y), Y)


def test_a_gradient_penalty():
    """Second derivatives use the weights again, in the graph of the first backward."""
    model = small_net()

    def forward():
        x = X.clone().requires_grad_()
        out = model(x)
        slope = torch.autograd.grad(out.square().sum(), x, create_graph=True)[0]
        return cross_entropy(out, Y) + slope.square().sum(1)

    assert_exact(model, forward, Y)


@pytest.mark.parametrize("layer", [nn.PReLU(5), nn.InstanceNorm1d(5, affine=True)], ids=["prelu", "instance norm"])
def test_a_gradient_penalty_on_weights_that_are_used_in_another_shape(layer):
    """The operation and its derivative share the node that reshapes or repeats the weight."""
    net = small_net()
    positions = nn.Unflatten(1, (5, 2)), layer, nn.Flatten()
    model = nn.Sequential(nn.Linear(4, 10), *positions, nn.Tanh(), nn.Linear(10, 3)).to(net[0].weight.dtype)

    def forward():
        x = X.clone().requires_grad_()
        losses = cross_entropy(model(x), Y)
        slope = torch.autograd.grad(losses.sum(), x, create_graph=True)[0]
        return losses + slope.square().sum(1)

    assert_exact(model, forward, Y)


WRAPPED = {
    "weight norm": parametrizations.weight_norm,
    "orthogonal": parametrizations.orthogonal,
    "spectral norm": lambda layer: parametrizations.spectral_norm(layer).eval(),
    "old spectral norm": lambda layer: torch.nn.utils.spectral_norm(layer).eval(),
}


@pytest.mark.parametrize("wrap", WRAPPED)
def test_parametrizations(wrap):
    model = small_net()
    model[0] = WRAPPED[wrap](model[0])
    assert_exact(model, lambda: cross_entropy(model(X), Y), Y)


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
def test_old_weight_norm():
    model = small_net()
    torch.nn.utils.weight_norm(model[2])
    assert_exact(model, lambda: cross_entropy(model(X), Y), Y)


def test_a_parametrization_registered_after_the_hooks():
    model = small_net()
    grads = ClassGradients(model)
    parametrizations.weight_norm(model[0])
    assert_exact(model, lambda: cross_entropy(model(X), Y), Y, grads)


def test_layers_replaced_frozen_and_thawed_after_the_hooks():
    model = small_net()
    grads = ClassGradients(model)
    model[0].requires_grad_(False)
    assert_exact(model, lambda: cross_entropy(model(X), Y), Y, grads)
    model[0].requires_grad_(True)
    assert_exact(model, lambda: cross_entropy(model(X), Y), Y, grads)
    model[2] = nn.Linear(5, 3).double()
    assert_exact(model, lambda: cross_entropy(model(X), Y), Y, grads)


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_parameters_put_in_their_place_for_a_while(factor):
    model = small_net()
    own = dict(model.named_parameters())

    def forward():
        others = own if factor == 1 else {name: p * factor for name, p in own.items()}
        return cross_entropy(torch.func.functional_call(model, others, X), Y)

    assert_exact(model, forward, Y)


def test_a_weight_frozen_during_the_call_and_read_elsewhere():
    model = small_net()

    def forward():
        model[0].weight.requires_grad_(False)
        out = model(X)
        model[0].weight.requires_grad_(True)
        return cross_entropy(out + (X.cos() @ model[0].weight.t())[:, :3], Y)

    assert_exact(model, forward, Y)


def test_a_weight_replaced_between_forward_and_backward():
    model = small_net()
    grads = ClassGradients(model)
    losses = cross_entropy(model(X), Y)
    model[0].weight = nn.Parameter(model[0].weight.detach().clone())
    expected = flat_gradients(losses, Y, model.parameters())
    grads.backward(losses, Y)
    assert model[0].weight.grad is None
    torch.testing.assert_close(flat_grad(model), unit_sum(expected))


def test_hooks_on_parameters_are_run():
    """As those that keep some rows of a weight where they are."""
    model = small_net()
    model[0].weight.register_hook(lambda g: g * (torch.arange(5) > 1)[:, None])
    seen = []
    model[2].weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    for engine in ("fused", "joint"):
        assert_exact(model, lambda: cross_entropy(model(X), Y), Y, engine=engine)
    assert len(seen) == 2
    torch.testing.assert_close(seen[0], seen[1])


@pytest.mark.parametrize("seen", [False, True])
def test_lazy_layers(seen, monkeypatch):
    monkeypatch.setattr("classgrad.gradients.engines._fused.joint_terms", None)  # the rules cover what they become
    model = nn.Sequential(nn.LazyLinear(5), nn.Tanh(), nn.LazyLinear(3)).double()
    grads = ClassGradients(model)
    if seen:
        model(X)
    losses = cross_entropy(model(X), Y)
    gradients = flat_gradients(losses, Y, model.parameters())
    grads.backward(losses, Y)
    torch.testing.assert_close(flat_grad(model), unit_sum(gradients), rtol=1e-10, atol=1e-12)


def test_weights_shared_by_layers_of_different_kinds():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
            self.head.weight = self.table.weight
            self.conv = nn.Conv1d(4, 5, 1, bias=False)
            self.conv.weight = nn.Parameter(self.table.weight[:, :, None].detach().clone())

        def forward(self, tokens):
            h = self.table(tokens)
            return self.head(h.mean(1)) + self.conv(h.mT).mean(2) + self.conv(h.mT.tanh()).mean(2)

    model = Tied().double()
    tokens = torch.randint(5, (8, 3), generator=torch.Generator().manual_seed(0))
    for memory in (0, 2**20):
        assert_exact(model, lambda: cross_entropy(model(tokens), Y), Y, max_memory=memory)
        gram = ClassGradients(model, gram=True, max_memory=memory).backward(cross_entropy(model(tokens), Y), Y).gram
        gradients = flat_gradients(cross_entropy(model(tokens), Y), Y, model.parameters())
        torch.testing.assert_close(gram, gradients @ gradients.T)


def test_a_model_of_one_layer():
    model = nn.Linear(4, 3).double()
    assert_exact(model, lambda: cross_entropy(model(X), Y), Y)


def test_uses_are_counted():
    weight, bias = nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(3))
    x = torch.randn(2, 4)
    t = weight.t()
    losses = (F.linear(x, weight, bias) + x @ t + (x + 1) @ t + bias * weight.sum()).sum(1)
    uses = read_graph(losses).uses
    assert uses[id(weight)] == 4
    assert uses[id(bias)] == 2
    assert read_graph(t.sum(0)).uses[id(weight)] == 1
    assert read_graph(weight.t()).uses[id(weight)] == 1


def test_forms_tell_graphs_apart():
    w = nn.Parameter(torch.randn(4))
    assert read_graph(w * 2).form == read_graph(w * 3).form
    assert read_graph(w * 2).form != read_graph(w + 2).form
    assert read_graph((w * 2) * w).form != read_graph((w * 2) * (w * 2)).form


class Stop(torch.autograd.Function):
    """Part of the graph, but no gradient passes."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return None


def test_a_layer_that_no_gradient_reaches():
    model = nn.ModuleList([nn.Linear(4, 3), nn.Linear(4, 3)]).double()
    losses = lambda: cross_entropy(model[0](X) + Stop.apply(model[1](X)), Y)  # noqa: E731
    gradients = flat_gradients(losses(), Y, model.parameters())
    ClassGradients(model).backward(losses(), Y)
    assert model[1].weight.grad is None
    torch.testing.assert_close(flat_grad(model), unit_sum(gradients))


def test_a_function_named_like_a_checkpoint():
    class CheckpointFunction(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            return g

    model = small_net()
    with pytest.raises(InputError, match="use_reentrant=False"):
        ClassGradients(model).backward(cross_entropy(CheckpointFunction.apply(model(X)), Y), Y)

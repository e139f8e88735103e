"""Which passes an engine makes, the gradients themselves, the check of the engine, full-batch references."""

from unittest import mock

import pytest
import torch
from torch import nn

from classgrad import Bisect, ClassGradients, InputError, Normalize, Rescale, Sum
from classgrad.gradients import GradientTable, Verification
from classgrad.gradients.engines._fused import fused_terms

from .._reference import batch, cross_entropy, flat_grad, flat_gradients, loss_of, small_net, unit_sum


class Bilinear(nn.Sequential):
    """A net with a layer of which nothing is known."""

    def __init__(self):
        super().__init__(small_net(), nn.Bilinear(3, 3, 3).double())

    def forward(self, x):
        h = self[0](x)
        return self[1](h, h)


class Scaled(nn.Module):
    """A net with one parameter no rule covers, which is spread over the examples."""

    def __init__(self):
        super().__init__()
        self.net = small_net()
        self.gain = nn.Parameter(torch.tensor(1.5).double())

    def forward(self, x):
        return self.net(x) * self.gain


def passes(grads, model, x, y):
    """How many backward passes the second step of a kind takes."""
    grads.backward_through(loss_of(model), x, y)
    with mock.patch("torch.autograd.grad", wraps=torch.autograd.grad) as grad:
        grads.backward_through(loss_of(model), x, y)
    return grad.call_count


@pytest.mark.parametrize(
    ("engine", "rule", "net", "expected"),
    [
        ("auto", Normalize(), small_net, 1),
        ("fused", Normalize(), small_net, 1),
        ("fused", Bisect(), small_net, 1),
        ("fused", Sum(), small_net, 1),
        ("fused", Normalize(), Scaled, 1),
        ("fused", Normalize(), Bilinear, 1 + 3),
        ("joint", Normalize(), small_net, 3),
        ("joint", Bisect(), small_net, 3),
        ("joint", Sum(), small_net, 1),
        ("split", Normalize(), small_net, 3),
        ("split", Sum(), small_net, 3),
    ],
)
def test_backward_passes(engine, rule, net, expected):
    model, (x, y) = net(), batch()
    assert passes(ClassGradients(model, rule, engine=engine), model, x, y) == expected


@pytest.mark.parametrize("engine", ["fused", "joint", "split"])
def test_split_runs_the_forward_class_by_class(engine):
    model, (x, y) = small_net(), batch()
    seen = []

    def loss(x, y):
        seen.append(sorted(set(y.tolist())))
        return cross_entropy(model(x), y)

    ClassGradients(model, engine=engine).backward_through(loss, x, y)
    assert seen == ([[0], [1], [2]] if engine == "split" else [[0, 1, 2]])
    seen.clear()
    ClassGradients(model, engine=engine).backward_through(loss, x, y, chunk=2)
    assert seen == [[0], [0], [1], [1], [2]]


@pytest.mark.parametrize("engine", ["auto", "fused", "joint", "split"])
def test_the_gradients_themselves(engine):
    model, (x, y) = Scaled(), batch()
    model.net[0].bias.requires_grad_(False)
    model.register_parameter("spare", nn.Parameter(torch.ones(2).double()))
    table = ClassGradients(model, engine=engine, classes=4).gradients(cross_entropy(model(x), y), y)
    assert isinstance(table, GradientTable)
    assert list(table.named) == ["gain", "spare", "net.0.weight", "net.2.weight", "net.2.bias"]
    assert table.named["net.0.weight"].shape == (4, 5, 4)
    assert table.named["gain"].shape == (4,)
    assert table.named["spare"].eq(0).all()
    assert all(p.grad is None for p in model.parameters())
    expected = flat_gradients(cross_entropy(model(x), y), y, model.parameters())
    torch.testing.assert_close(table.matrix[:3], expected)
    assert table.matrix[3].eq(0).all()
    torch.testing.assert_close(table.gram[:3, :3], expected @ expected.T)
    assert table.classes.tolist() == [0, 1, 2, 3]
    assert table.counts.tolist() == [*torch.bincount(y).tolist(), 0]
    losses = cross_entropy(model(x), y).detach()
    torch.testing.assert_close(table.losses[:3], torch.stack([losses[y == c].sum() / 8 for c in range(3)]))


def test_the_gradients_of_a_model_that_learns_nothing():
    model = small_net().requires_grad_(False)
    leaf = torch.ones(3, requires_grad=True)
    table = ClassGradients(model).gradients(leaf * 2, torch.tensor([0, 1, 1]))
    assert table.matrix.shape == (2, 0)
    assert table.gram.shape == (2, 2)


def test_the_gradients_of_an_empty_batch():
    table = ClassGradients(small_net(), classes=2).gradients(
        torch.zeros(0, requires_grad=True) * 1, torch.zeros(0).long()
    )
    assert table.matrix.shape == (2, 43)
    assert table.matrix.eq(0).all()


@pytest.mark.parametrize("memory", [2**20, 2**30])
@pytest.mark.parametrize("engine", ["auto", "fused", "joint", "split"])
def test_verify(engine, memory):
    model, (x, y) = Scaled(), batch()
    found = ClassGradients(model, engine=engine, max_memory=memory).verify(loss_of(model), (x, y))
    assert isinstance(found, Verification)
    assert found.engine == ("fused" if engine == "auto" else engine)
    assert set(found.errors) == {name for name, _ in model.named_parameters()}
    assert found.largest < 1e-12
    assert str(found).startswith(f"{found.engine} engine: largest relative error ")
    assert all(p.grad is None for p in model.parameters())


def test_verify_sees_what_a_step_would_use():
    """A wrong norm, or a wrong sum, is an error even if the class gradients are right."""
    model, (x, y) = small_net(), batch()
    layer = "classgrad.gradients.layers._linear"
    with mock.patch(f"{layer}.ghost_is_cheaper", return_value=True):
        assert ClassGradients(model).verify(loss_of(model), (x, y)).largest < 1e-12
        with mock.patch(
            f"{layer}.ghost_square_norms", side_effect=lambda a, b, sizes, *_: a.new_full((len(sizes),), 4.0)
        ):
            assert ClassGradients(model).verify(loss_of(model), (x, y)).largest > 0.1
        with mock.patch(f"{layer}.weighted_examples", side_effect=lambda a, b, *_: (a, 2 * b, None)):
            assert ClassGradients(model).verify(loss_of(model), (x, y)).largest > 0.1


def test_verify_says_when_the_fast_engine_was_not_used():
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)).double()
    x, y = batch(examples=12)
    grads = ClassGradients(model)
    with pytest.warns(UserWarning, match="mixes the examples"):
        found = grads.verify(loss_of(model), (x, y))
    assert found.engine == "joint"
    assert found.largest == 0


def test_verify_shows_that_split_is_another_thing_under_batch_norm():
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)).double()
    found = ClassGradients(model, engine="split").verify(loss_of(model), batch(examples=12))
    assert found.largest > 0.01


def test_verify_of_a_parameter_the_engine_lost():
    model, (x, y) = small_net(), batch()

    def lose(*args):
        return dict(list(fused_terms(*args).items())[1:])

    with mock.patch("classgrad.gradients.engines._engines.fused_terms", lose):
        found = ClassGradients(model).verify(loss_of(model), (x, y))
    assert found.errors["0.weight"] == 1.0
    assert str(found) == "fused engine: largest relative error 1.0e+00 at 0.weight"


def test_verify_of_nothing():
    model = small_net().requires_grad_(False)
    leaf = torch.ones(2, requires_grad=True)
    found = ClassGradients(model).verify(lambda x, y: leaf * x, (torch.ones(2), torch.tensor([0, 1])))
    assert found.largest == 0
    assert str(found) == "fused engine: largest relative error 0.0e+00 at no parameter"


@pytest.mark.parametrize("engine", ["fused", "joint", "split"])
def test_rescale(engine):
    """1/(p_l ‖g_l‖) with p_l the cosine to the full-batch class gradient."""
    model, (x, y) = small_net(), batch(examples=10)
    full, labels = batch(examples=40, seed=5)
    grads = ClassGradients(model, Rescale(floor=0.0, on_negative="keep"), engine=engine, classes=4)
    grads.refresh(loss_of(model), [(full[:15], labels[:15]), (full[:0], labels[:0]), (full[15:], labels[15:])])
    assert all(p.grad is None for p in model.parameters())
    step = grads.backward_through(loss_of(model), x, y)
    own = flat_gradients(cross_entropy(model(x), y), y, model.parameters())
    reference = flat_gradients(cross_entropy(model(full), labels), labels, model.parameters())
    p = nn.functional.cosine_similarity(own, reference)
    torch.testing.assert_close(step.projections[:3], p)
    torch.testing.assert_close(step.weights[:3], 1 / (p * own.norm(dim=1)))
    torch.testing.assert_close(flat_grad(model), (own / (p * own.norm(dim=1))[:, None]).sum(0))
    assert step.skipped == {3: "missing"}


def test_rescale_keeps_its_reference_until_the_next_refresh():
    model, (x, y) = small_net(), batch()
    grads = ClassGradients(model, Rescale())
    grads.refresh(loss_of(model), [(x, y)])
    first = grads.backward(cross_entropy(model(x), y), y)
    torch.testing.assert_close(first.projections, torch.ones(3).double())
    with torch.no_grad():
        for p in model.parameters():
            p += 0.5 * torch.randn_like(p)
    stale = grads.backward(cross_entropy(model(x), y), y)
    assert (stale.projections < 0.999).any()
    grads.refresh(loss_of(model), [(x, y)])
    fresh = grads.backward(cross_entropy(model(x), y), y)
    torch.testing.assert_close(fresh.projections, torch.ones(3).double())


def test_a_class_without_full_batch_direction_is_left_out():
    model, (x, y) = small_net(), batch()
    grads = ClassGradients(model, Rescale())
    grads.refresh(lambda x, y: cross_entropy(model(x), y) * (y != 1), [(x, y)])
    step = grads.backward(cross_entropy(model(x), y), y)
    assert step.projections[1] == 0
    assert step.weights[1] == 0
    assert (step.weights[[0, 2]] > 0).all()


def test_a_class_whose_full_batch_gradient_is_not_finite_is_left_out():
    model, (x, y) = small_net(), batch()
    grads = ClassGradients(model, Rescale())
    grads.refresh(lambda x, y: cross_entropy(model(x), y) * torch.where(y == 1, torch.inf, 1.0), [(x, y)])
    step = grads.backward(cross_entropy(model(x), y), y)
    assert step.weights[1] == 0
    assert flat_grad(model).isfinite().all()


def test_rescale_of_losses_that_reach_nothing():
    model, (x, y) = small_net(), batch()
    grads = ClassGradients(model, Rescale())
    grads.refresh(loss_of(model), [(x, y)])
    leaf = torch.ones(8, requires_grad=True)
    assert grads.backward(leaf * 1.0, y).skipped == dict.fromkeys(range(3), "zero")


def test_refresh_over_nothing_covers_nothing():
    model, (x, y) = small_net(), batch()
    grads = ClassGradients(model, Rescale())
    grads.refresh(loss_of(model), [])
    with pytest.raises(InputError, match="Class 0 is not among them"):
        grads.backward(cross_entropy(model(x), y), y)


def test_refresh_under_a_model_of_unreached_parameters():
    model, (_, y) = small_net(), batch()
    leaf = torch.ones(8, requires_grad=True)
    grads = ClassGradients(model, Rescale())
    grads.refresh(lambda x, y: x * 1.0, [(leaf, y)])
    assert grads.backward(leaf * 1.0, y).skipped == dict.fromkeys(range(3), "zero")


@pytest.mark.parametrize("engine", ["fused", "joint"])
def test_the_order_of_examples_and_labels_does_not_matter(engine):
    model, (x, y) = small_net(), batch()
    ClassGradients(model, engine=engine).backward(cross_entropy(model(x), y), y)
    gradients = flat_gradients(cross_entropy(model(x), y), y, model.parameters())
    torch.testing.assert_close(flat_grad(model), unit_sum(gradients))
    order = torch.arange(8).flip(0)
    model.zero_grad()
    ClassGradients(model, engine=engine).backward(cross_entropy(model(x[order]), y[order]), 7 - y[order])
    torch.testing.assert_close(flat_grad(model), unit_sum(gradients))

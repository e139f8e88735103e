"""The engine with its kernels in place of torch's operations, against one backward pass per class."""

from importlib.util import find_spec

import pytest
import torch
from torch import nn
from torch.nn import functional as F

if find_spec("triton") is None:
    pytest.skip("needs Triton, which comes with torch's builds for CUDA", allow_module_level=True)

from ._kernels import DEVICE

from classgrad import ClassGradients  # isort: skip
from classgrad.gradients import kernels  # isort: skip
from classgrad.gradients._layout import ClassLayout  # isort: skip
from classgrad.gradients._memo import MakeUp  # isort: skip


class Positions(nn.Module):
    """From maps to rows of channels, one per position."""

    def forward(self, x):
        return x.flatten(2).mT


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.GroupNorm(2, 8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2),
        nn.GroupNorm(4, 16),
        Positions(),
        nn.LayerNorm(16),
        nn.Linear(16, 12),
        nn.RMSNorm(12),
        nn.Flatten(),
        nn.Linear(9 * 12, 9),
    ).to(DEVICE)


@pytest.mark.parametrize("sizes", [[3] * 9, [6, 1, 1, 2, 4, 1, 3, 5, 2], [9, 16]])
@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    ("rows", "ghost", "weighs"), [(0, True, False), (10**9, False, False), (10**9, True, False), (10**9, True, True)]
)
def test_directions_and_norms(sizes, shuffled, rows, ghost, weighs, format, monkeypatch):
    """``rows`` decides whether convolutions go by their kernel, ``ghost`` whether class gradients are made at all.

    And whether the kernel for layer normalization makes the input's gradient too. What is to be recorded is added up by
    class at once. ``weighs`` decides whether a kernel makes the weighted sum of class gradients that were not made.
    """
    monkeypatch.setattr(kernels, "available", lambda tensor: tensor.dtype == torch.float32)
    monkeypatch.setattr("classgrad.gradients._layout.make_up_of", MakeUp)  # what others found is forgotten
    monkeypatch.setattr(ClassLayout, "recorded", ghost)
    monkeypatch.setattr("classgrad.gradients.terms._cost._KERNEL_ROWS", rows)
    monkeypatch.setattr("classgrad.gradients.terms._cost._ROWS_CALLS", 0)
    monkeypatch.setattr("classgrad.gradients.layers._taps._FEW", 0 if ghost else 10**9)
    for layer in ("_linear", "_conv"):
        monkeypatch.setattr(f"classgrad.gradients.layers.{layer}.ghost_is_cheaper", lambda *_, **__: ghost)
        monkeypatch.setattr(f"classgrad.gradients.layers.{layer}.kernel_weighs", lambda *_: weighs)
    monkeypatch.setattr("classgrad.gradients.layers._conv.rows_are_cheaper", lambda *_: True)
    made_by_kernel, products = [], kernels.conv_products
    monkeypatch.setattr(
        kernels, "conv_products", lambda a, *rest, **how: (made_by_kernel.append(a), products(a, *rest, **how))[1]
    )
    model = network().to(memory_format=format)
    y = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    y = (y[torch.randperm(len(y))] if shuffled else y).to(DEVICE)
    x = torch.randn(len(y), 3, 8, 8, device=DEVICE).to(memory_format=format)

    def step(**options):
        model.zero_grad()
        with ClassGradients(model, **options) as grads:
            made = grads.backward(F.cross_entropy(model(x), y, reduction="none"), y)
        return made, {name: p.grad for name, p in model.named_parameters()}

    found, direction = step()
    assert len(made_by_kernel) == (2 if weighs or not rows else 0)
    # a GPU's group normalization lays maps out anew
    assert shuffled or DEVICE != "cpu" or all(a.is_contiguous(memory_format=format) for a in made_by_kernel)
    expected, reference = step(engine="joint")
    torch.testing.assert_close(found.norms, expected.norms, rtol=3e-3, atol=0)
    for name, value in reference.items():
        assert (direction[name] - value).norm() <= 3e-3 * value.norm(), name


def normalized(kind):
    norm = nn.GroupNorm(2, 8) if kind == "group" else nn.LayerNorm(8)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), norm, nn.Tanh(), nn.Linear(8, 3)).to(DEVICE)
    nn.init.normal_(norm.weight)
    return model, torch.randn(12, 5, device=DEVICE), torch.arange(12, device=DEVICE) % 3


@pytest.fixture
def with_kernels(monkeypatch):
    monkeypatch.setattr(kernels, "available", lambda tensor: tensor.dtype == torch.float32)
    monkeypatch.setattr("classgrad.gradients._layout.make_up_of", MakeUp)  # what others found is forgotten
    monkeypatch.setattr("classgrad.gradients.layers._taps._FEW", 0)


def both_engines(model, losses, y, before=lambda: None):
    found = []
    for engine in ("fused", "joint"):
        model.zero_grad()
        with ClassGradients(model, engine=engine, norms=True) as grads:
            values = losses()
            before()
            made = grads.backward(values, y)
        found.append([made.norms, *[p.grad for p in model.parameters() if p.grad is not None]])
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", ["group", "layer"])
def test_normalizations_called_with_other_weights(kind, with_kernels):
    model, x, y = normalized(kind)
    mask = torch.tensor([0.0, 1, 3, 0, 2, -1, 0.5, 1], device=DEVICE)

    def losses():
        other = {"1.weight": model[1].weight * mask}
        return F.cross_entropy(torch.func.functional_call(model, other, (x,)), y, reduction="none")

    both_engines(model, losses, y)


@pytest.mark.parametrize("kind", ["group", "layer"])
def test_normalizations_whose_weights_are_replaced_before_the_backward_pass(kind, with_kernels):
    model, x, y = normalized(kind)
    own = model[1].weight

    def losses():
        model[1].weight = own
        return F.cross_entropy(model(x), y, reduction="none")

    def before():
        model[1].weight = nn.Parameter(own.detach() * 5)

    both_engines(model, losses, y, before)


@pytest.mark.parametrize("kind", ["group", "layer"])
def test_normalizations_whose_weights_have_gaps_in_memory(kind, with_kernels):
    model, x, y = normalized(kind)
    model[1].weight = nn.Parameter(torch.randn(8, 2, device=DEVICE)[:, 0])
    both_engines(model, lambda: F.cross_entropy(model(x), y, reduction="none"), y)


@pytest.mark.parametrize("kind", ["group", "layer"])
def test_a_weight_that_was_changed_in_place_is_noticed_at_every_step(kind, with_kernels):
    model, x, y = normalized(kind)
    with ClassGradients(model) as grads:
        for step in range(3):
            losses = F.cross_entropy(model(x), y, reduction="none")
            if step < 2:
                grads.backward(losses, y)
        with torch.no_grad():
            model[1].weight.mul_(5)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            grads.backward(losses, y)


def test_a_bias_of_group_normalization_may_be_changed_before_the_backward_pass(with_kernels):
    """Nothing depends on it, so torch's own node does not keep it."""
    model, x, y = normalized("group")

    def before():
        with torch.no_grad():
            model[1].bias.add_(0.5).sub_(0.5)

    both_engines(model, lambda: F.cross_entropy(model(x), y, reduction="none"), y, before)

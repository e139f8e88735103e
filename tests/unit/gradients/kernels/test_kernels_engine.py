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

"""What is worked out once for shapes and class sizes must not outlive them."""

from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from classgrad import ClassGradients
from classgrad.gradients._layout import class_layout
from classgrad.gradients._memo import _KEPT, Memo, make_up_of
from classgrad.gradients.terms._cost import RECORDED, ghost_is_cheaper, kernel_is_cheaper, kind_of

from ._reference import flat_grad


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.GroupNorm(2, 4),
        nn.Tanh(),
        nn.Conv2d(4, 3, 2, stride=2),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.LayerNorm(12),
        nn.Linear(12, 4),
    ).double()


def same(model):
    """Change nothing: labels are shuffled anew."""


def wider(model):
    model[3].stride, model[3].dilation = (1, 1), (2, 2)


def bordered(model):
    model[0].padding, model[0]._reversed_padding_repeated_twice = (2, 2), [2, 2, 2, 2]


def other_weights(model):
    model[7].weight = nn.Parameter(torch.randn(4, 12, dtype=torch.float64))


def frozen(model):
    model[0].weight.requires_grad_(False)


def longer(model):
    model[7] = nn.Linear(12, 6).double()


def single(model):
    model.float()


@pytest.mark.parametrize("change", [same, wider, bordered, other_weights, frozen, longer, single])
def test_a_change_of_the_model_between_steps(change):
    model, x = network(), torch.randn(8, 2, 6, 6, dtype=torch.float64)
    with ClassGradients(model) as grads:
        for changed in (False, True):
            if changed:
                change(model)
            x = x.to(next(model.parameters()).dtype)
            for _ in range(2):
                expect_the_step_of_the_reference(grads, model, x, torch.tensor([0, 1, 2, 3] * 2)[torch.randperm(8)])


def test_changes_of_the_batch_between_steps():
    model, x = network(), torch.randn(12, 2, 8, 8, dtype=torch.float64)
    even, uneven = torch.tensor([0, 1, 2, 3] * 3), torch.tensor([3, 0, 0, 0, 1, 0, 0, 2, 0, 0, 0, 1])
    with ClassGradients(model) as grads:
        for _ in range(2):
            for y in (even, uneven, even.sort().values, even[:8], even % 2):
                expect_the_step_of_the_reference(grads, model, x[: len(y)], y)
                expect_the_step_of_the_reference(grads, model, x[: len(y), :, :6], y)
                expect_the_step_of_the_reference(grads, model, x[: len(y)].contiguous(memory_format=_LAST), y)


_LAST = torch.channels_last


def expect_the_step_of_the_reference(grads, model, x, y):
    def step(grads):
        model.zero_grad()
        made = grads.backward(F.cross_entropy(model(x), y, reduction="none"), y)
        return made.norms, flat_grad(model)

    found = step(grads)
    with ClassGradients(model, engine="joint") as joint:
        torch.testing.assert_close(found, step(joint))


def test_batches_with_classes_of_the_same_sizes_share_what_was_found():
    first, second, third = (class_layout(torch.tensor(y), None) for y in ([0, 1, 0], [1, 0, 0], [1, 1, 0]))
    assert first.memo is second.memo
    assert first.memo is not third.memo
    assert make_up_of(np.array([2, 1])).memo is first.memo


def test_findings_do_not_pile_up():
    memo = Memo()
    for key in range(_KEPT + 1):
        memo[key] = key
    assert dict(memo) == {_KEPT: _KEPT}


def test_decisions_are_made_for_the_shape_and_the_sizes_they_are_asked_for():
    few, many = (class_layout(torch.arange(classes).repeat(4), None) for classes in (2, 100))
    asked = [(1, 1024, 512, layout, "cuda") for layout in (few, many)]
    assert [ghost_is_cheaper(*each) for each in asked * 2] == [False, True] * 2
    assert [ghost_is_cheaper(1, size, size, few, "cpu") for size in (8, 4096, 8)] == [False, True, False]


def test_a_gpu_that_is_recorded_does_not_wait_for_launches():
    layout = class_layout(torch.arange(2).repeat(64), None)
    shape = (1, 4608, 512, layout)
    assert kernel_is_cheaper(*shape, "cuda")
    assert not kernel_is_cheaper(*shape, RECORDED)
    assert not kernel_is_cheaper(4, *shape[1:], "cuda")


def test_what_is_to_be_recorded_is_told_by_the_layout_before_it_is():
    layout = class_layout(torch.arange(2), None)
    gpu, cpu = (mock.Mock(is_cuda=kind == "cuda", device=torch.device(kind)) for kind in ("cuda", "cpu"))
    assert [kind_of(gpu, layout), kind_of(cpu, layout)] == ["cuda", "cpu"]
    layout.prepare()
    assert [kind_of(gpu, layout), kind_of(cpu, layout)] == [RECORDED, "cpu"]
    assert layout.grouped().recorded


def test_narrow_convolutions_are_left_to_the_kernel_with_fewer_rows():
    """Laying out their patches would take longer than all else, whether or not the step is recorded."""
    layout = class_layout(torch.arange(128) % 100, None)
    narrow, wide = (256, 25 * 16, 32, layout), (256, 9 * 128, 128, layout)
    assert all(kernel_is_cheaper(*narrow, device) for device in ("cuda", RECORDED))
    assert not any(kernel_is_cheaper(*wide, device) for device in ("cuda", RECORDED))
    assert not kernel_is_cheaper(32, *narrow[1:], RECORDED)

"""The kernels for class gradients as rows of one matrix, and those that make them from inputs and output gradients."""

import pytest
import torch

from ._kernels import DEVICE, close, drawn

from classgrad.gradients import kernels  # isort: skip


@pytest.mark.parametrize(("classes", "width"), [(1, 5), (2, 3000), (5, 700), (19, 33), (3, 0)])
def test_rows_of_one_matrix(classes, width):
    kept = drawn(classes, width + 3)[:, :width]
    weights = drawn(classes)
    close(kernels.weighted_sum(kept, weights), weights.double() @ kept.double())
    close(kernels.row_square_norms(kept), kept.double().square().sum(1))


def test_norms_of_many_blocks():
    kept = drawn(2, 40_000)
    close(kernels.row_square_norms(kept), kept.double().square().sum(1))


def test_a_class_of_weight_zero_is_left_out():
    kept = drawn(4, 50)
    kept[2, 3] = float("nan")
    kept[2, 4] = float("inf")
    weights = torch.tensor([1.0, -2.0, 0.0, 0.5], device=DEVICE)
    out = torch.full((50,), float("nan"), device=DEVICE)
    assert kernels.weighted_sum(kept, weights, out) is out
    rows = [0, 1, 3]
    close(out, weights[rows].double() @ kept[rows].double())
    assert kernels.row_square_norms(kept).isnan().tolist() == [False, False, True, False]

"""Which example belongs to which class: laid out once, and known again."""

import pytest
import torch

from classgrad import ClassGradients, InputError
from classgrad.gradients import _layout
from classgrad.gradients._layout import Layouts, class_layout

from ._reference import batch, cross_entropy, flat_grad, small_net


def test_a_layout_says_where_everything_is():
    layout = class_layout(torch.tensor([7, -2, 7, 3, -2]), torch.tensor([-2, 0, 3, 7]))
    assert layout.labels == layout.classes.tolist() == [-2, 0, 3, 7]
    assert layout.sizes == layout.counts.tolist() == [2, 0, 1, 2]
    assert layout.index.tolist() == [3, 0, 3, 2, 0]
    assert layout.order.tolist() == [1, 4, 3, 0, 2]
    assert layout.grouped().index.tolist() == [0, 0, 2, 3, 3]
    assert layout.grouped().order is None
    assert layout._offsets.tolist() == [0, 2, 2, 3, 5]


def test_the_same_labels_are_known_again():
    layouts = Layouts(None)
    y = torch.tensor([1, 0, 1])
    first = layouts(y)
    assert layouts(y.clone()) is first
    y[0] = 0
    assert layouts(y).sizes == [2, 1]
    assert layouts(torch.tensor([1, 0, 1])) is first


def test_only_the_latest_are_kept():
    layouts = Layouts(None)
    y = torch.tensor([0, 1])
    first = layouts(y)
    for label in range(2, 2 + _layout._KEPT):
        layouts(torch.tensor([0, label]))
    assert layouts(y) is not first


def test_large_ones_are_not_kept(monkeypatch):
    monkeypatch.setattr(_layout, "_KEPT_ELEMENTS", 5)
    layouts = Layouts(torch.arange(3))
    y = torch.tensor([0, 1])
    assert layouts(y) is not layouts(y)


def test_unknown_labels_are_told_every_time():
    layouts = Layouts(torch.arange(2))
    for _ in range(2):
        with pytest.raises(InputError, match=r"should hold only the declared classes 0, 1\. Found 5\."):
            layouts(torch.tensor([0, 5, 5]))


def test_steps_on_the_same_labels_are_the_same():
    model, (x, y) = small_net(), batch()
    grads = ClassGradients(model)
    directions = []
    for labels in (y, y.flip(0), y.clone()):
        model.zero_grad()
        grads.backward(cross_entropy(model(x), y), labels)
        directions.append(flat_grad(model))
    assert torch.equal(directions[0], directions[2])
    assert not torch.equal(directions[0], directions[1])

"""Which example belongs to which class: laid out once, and known again."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from classgrad import ClassGradients, InputError
from classgrad.gradients import _layout
from classgrad.gradients._layout import Layouts, class_layout
from classgrad.gradients._memo import make_up_of

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


@pytest.mark.parametrize("sizes", [[], [0], [3], [2, 2], [2, 0, 1, 2, 0]])
def test_a_make_up_tells_what_follows_from_the_sizes(sizes):
    make_up = make_up_of(np.array(sizes, np.int64))
    assert make_up is make_up_of(np.array(sizes, np.int64))
    assert (len(make_up), make_up.sizes, make_up.examples) == (len(sizes), sizes, sum(sizes))
    assert (make_up.largest, make_up.complete) == (max(sizes, default=0), all(sizes))
    assert make_up.equal == (sizes[0] if len(set(sizes)) == 1 else None)
    assert make_up.tally == Counter(sizes)
    assert make_up.ends == [sum(sizes[:count]) for count in range(len(sizes) + 1)]


labels = st.integers(-(2**63), 2**63 - 1) | st.integers(-5, 30)


@given(st.lists(labels, max_size=20))
@example([2**63 - 1, -(2**63), 2**63 - 1])
@example([2**63 - 1, 2**63 - 5])
@example([-(2**63) + 1, -(2**63)])
def test_labels_near_to_each_other_or_far_apart(y):
    layout = class_layout(torch.tensor(y, dtype=torch.int64), None)
    assert layout.labels == layout.classes.tolist() == sorted(set(y))
    assert [layout.labels[position] for position in layout.index.tolist()] == y
    assert layout.sizes == [y.count(label) for label in layout.labels]
    assert layout.make_up.complete
    order = list(range(len(y))) if layout.order is None else layout.order.tolist()
    assert order == sorted(range(len(y)), key=y.__getitem__)
    assert [layout.span(i, i + 1) for i in range(len(layout))] == layout.bounds


def test_more_classes_than_short_numbers_can_tell_apart():
    y = torch.randperm(2**16 + 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(class_layout(y, None).order, y.argsort())


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

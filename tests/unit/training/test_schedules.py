import math

import pytest
import torch

from classgrad import InputError
from classgrad.training import SCHEDULES, Moment, schedule

GRAM = torch.tensor([[4.0, -0.5], [-0.5, 1.0]])  # norms 2 and 1, cos α = -1/4


def eta(name, t=0, lr=0.5, steps=16, epoch=0, **options):
    found = schedule(name, options)
    return found(Moment(t, steps, epoch, lr, GRAM if found.needs_gram else None, options))


@pytest.mark.parametrize("t", [0, 1, 7])
def test_closed_forms(t):
    assert eta("constant", t) == 0.5
    assert eta("inverse-sqrt", t) == 0.5 / 4
    assert eta("dominated-decreasing", t) == pytest.approx(0.5 * (2 * t + 1) / (t + 1) ** 2)
    assert eta("dominated-constant", t, c=0.2) == pytest.approx(0.1)
    assert eta("pcngd-second", t) == pytest.approx(0.5 / (0.75 * 4))


def test_the_first_theorem_takes_the_smaller_of_both():
    # class 0: C = 1/2, 1 + C cos α = 7/8; class 1: C = 2, 1 + C cos α = 1/2
    caps = [7 / 8 / (2 * 1.25 * 3.0), 1 / 2 / (2 * 5 * 3.0)]
    assert eta("gd-alternate", smoothness=3.0) == pytest.approx(min(caps))
    assert eta("gd-theorem", smoothness=3.0) == pytest.approx(min(caps))
    assert eta("gd-theorem", smoothness=3.0, lr=0.01) == pytest.approx(0.01 / 4)
    assert eta("gd-alternate", smoothness=3.0, lr=0.01) == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("epoch", "factor"),
    [(0, 1), (6, 1), (7, 0.1), (78, 0.1), (79, 0.01), (798, 0.01), (799, 0.001), (7999, 0.0001)],
)
def test_the_authors_decay_drops_where_their_code_does(epoch, factor):
    assert eta("authors-decay", epoch=epoch) == pytest.approx(0.5 * factor)


def test_every_schedule_is_positive_and_finite():
    for name, row in SCHEDULES.items():
        options = {"smoothness": 2.0} if "smoothness" in row.options else {}
        assert all(0 < eta(name, t, **options) < math.inf for t in range(16))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("cosine", {}, "should be one of constant, inverse-sqrt"),
        ("constant", {"c": 1}, "takes the options: none"),
        ("gd-theorem", {}, "needs the option `smoothness`"),
        ("gd-theorem", {"smoothness": -1}, "should be a number above 0"),
        ("dominated-constant", {"c": 1.5}, "`c` should be below 1"),
    ],
)
def test_bad_schedules_are_refused(name, options, message):
    with pytest.raises(InputError, match=message):
        schedule(name, options)

import pytest

from classgrad._errors import InputError
from classgrad.dynamics import authors_grid, log_grid, measuring_grid


def test_the_authors_grids_as_their_code_makes_them():
    long = authors_grid(18000)
    assert long[:21] == (*range(15), 16, 20, 25, 30, 37, 45)
    assert long[-2:] == (14738, 18000)
    assert len(long) == 51
    short = authors_grid(3000)
    assert short[:23] == (*range(20), 22, 26, 31)
    assert short[-2:] == (2548, 3000)


def test_the_authors_grid_of_their_later_stochastic_runs():
    assert authors_grid(10**6, points=5, first=2) == (0, 1, 2, 1000, 31623, 10**6)
    assert authors_grid(10**6, points=5, first=4) == (0, 1, 2, 3, 4, 10**6)


def test_authors_grid_loses_points_past_the_end_but_not_the_last_step():
    assert authors_grid(10) == tuple(range(11))
    assert authors_grid(3, points=8) == (0, 1, 2, 3)


@pytest.mark.parametrize("make", [log_grid, authors_grid])
@pytest.mark.parametrize(("steps", "expected"), [(0, (0,)), (1, (0, 1)), (2, (0, 1, 2))])
def test_short_runs(make, steps, expected):
    assert make(steps) == expected


def test_log_grid_is_nearly_geometric():
    grid = log_grid(10**6, points=7)
    assert grid == (0, 1, 10, 100, 1000, 10**4, 10**5, 10**6)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("log", log_grid(5000)),
        ("log:12", log_grid(5000, 12)),
        ("authors", authors_grid(5000)),
        ("authors:12", authors_grid(5000, 12)),
    ],
)
def test_grids_by_name(name, expected):
    assert measuring_grid(name, 5000) == expected


def test_every_step_by_name():
    assert measuring_grid("all", 4) == (0, 1, 2, 3, 4)


def test_explicit_lists_gain_both_ends():
    assert measuring_grid([7, 3, 7], 10) == (0, 3, 7, 10)
    assert measuring_grid(range(0, 11, 5), 10) == (0, 5, 10)
    assert measuring_grid([], 10) == (0, 10)


@pytest.mark.parametrize("name", ["", "lin", "log:", "log:x", "log:-3", "all:3", "log:1.5"])
def test_unknown_names_are_refused(name):
    with pytest.raises(InputError, match="`grid` should be log, authors"):
        measuring_grid(name, 100)


def test_too_few_points_are_refused():
    with pytest.raises(InputError, match=r"`points` should be a whole number of at least 2\. Found 1"):
        measuring_grid("log:1", 100)


@pytest.mark.parametrize("steps", [[-1], [101], [1.5], [True]])
def test_lists_of_other_than_steps_of_the_run_are_refused(steps):
    with pytest.raises(InputError, match="`grid` should list whole steps from 0 to 100"):
        measuring_grid(steps, 100)


@pytest.mark.parametrize("steps", [-1, 2.0, "10", True])
def test_steps_must_be_a_count(steps):
    with pytest.raises(InputError, match="`steps` should be a whole number of at least 0"):
        measuring_grid("log", steps)


def test_first_must_be_positive():
    with pytest.raises(InputError, match="`first`"):
        authors_grid(100, first=0)

import pytest

from classgrad import InputError
from classgrad.rules import Bisect, Normalize, Rescale, Sum
from classgrad.training import ALGORITHMS, SEVEN, algorithm

TABLE = {
    "gd": ("full", Sum),
    "pcngd": ("full", Normalize),
    "sgd": ("shuffled", Sum),
    "pcnsgd": ("proportional", Normalize),
    "pcnsgd+r": ("proportional", Rescale),
    "sgd+o": ("balanced", Sum),
    "pcnsgd+o": ("balanced", Normalize),
    "r-pcngd": ("full", Normalize),
    "bisection": ("full", Bisect),
}


def test_the_table_is_the_paper_s():
    assert {name: (row.batches, type(row.make_rule())) for name, row in ALGORITHMS.items()} == TABLE
    assert set(SEVEN) == set(TABLE) - {"r-pcngd", "bisection"}
    assert all(row.schedule == "constant" for row in ALGORITHMS.values())


def test_rescaling_refreshes_every_five_steps_unless_told_otherwise():
    assert algorithm("pcnsgd+r").make_rule().every == 5
    assert algorithm("pcnsgd+r", every=2, floor=0.3).make_rule().every == 2


def test_the_authors_protocol_differs_where_their_code_does():
    decaying = {name for name in SEVEN if algorithm(name, protocol="authors").schedule == "authors-decay"}
    balanced = {name for name in SEVEN if algorithm(name, protocol="authors").composition == "balanced"}
    rescale = algorithm("pcnsgd+r", protocol="authors").make_rule()
    assert decaying == {"pcnsgd", "pcnsgd+o", "sgd+o"}
    assert balanced == {"pcnsgd+o", "sgd+o"}
    assert (rescale.every, rescale.form) == (1, "authors")
    assert algorithm("sgd", protocol="authors").batches == "proportional"
    assert algorithm("gd", protocol="authors") == algorithm("gd")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: algorithm("adam"), "should be one of gd, pcngd"),
        (lambda: algorithm("gd", protocol="mine"), "paper or authors"),
        (lambda: algorithm("pcngd", every=3), "takes the options: per, eps"),
        (lambda: algorithm("gd", every=3), "takes the options: none"),
        (lambda: algorithm("pcnsgd+r", every=0), "`every` should be a whole number of at least 1"),
    ],
)
def test_bad_names_and_options_are_refused_in_one_line(call, message):
    with pytest.raises(InputError, match=message) as error:
        call()
    assert "\n" not in str(error.value)

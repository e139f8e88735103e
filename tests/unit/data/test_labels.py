from __future__ import annotations

import numpy as np
import pytest

from classgrad import InputError
from classgrad.data._labels import class_labels, stratified
from classgrad.data._order import random_keys


@pytest.mark.parametrize(
    ("values", "labels", "names"),
    [
        (["b", "a", "a"], [1, 0, 0], ("a", "b")),
        (["b", "a"], [1, 0], ("a", "b")),  # equal counts: by name
        ([10, 9, 10, 10], [0, 1, 0, 0], ("10", "9")),
        ([10, 9], [1, 0], ("9", "10")),
        ([-1.0, 1.0, 1.0], [1, 0, 0], ("1", "-1")),
        ([True, False, True], [0, 1, 0], ("True", "False")),
    ],
)
def test_the_most_frequent_class_comes_first(values: list, labels: list[int], names: tuple[str, ...]) -> None:
    found, classes = class_labels(np.array(values), "x")
    assert (found.tolist(), classes) == (labels, names)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([0.5, 1.0], "x: labels must be texts or whole numbers, found fractions"),
        ([0.0, np.inf], "x: labels must be texts or whole numbers below 2\\^63, found inf"),
        ([0.0, -1e19], "x: labels must be texts or whole numbers below 2\\^63, found -1e\\+19"),
        (["a", "\udcff"], "x: the names of the classes must be text in UTF-8"),
        ([1j, 2j], "x: labels must be texts or whole numbers, found type complex128"),
        (["a", "a"], "x: at least 2 classes are needed, found 1"),
    ],
)
def test_labels_that_are_none(values: list, message: str) -> None:
    with pytest.raises(InputError, match=message):
        class_labels(np.array(values), "x")


def test_random_keys_are_splitmix64() -> None:
    # The first outputs of the reference implementation for the state 0.
    assert [hex(k) for k in random_keys(3, seed=0)] == ["0xe220a8397b1dcdaf", "0x6e789e6aa1b965f4", "0x6c45d188009454f"]


def test_random_orders_look_random() -> None:
    orders = np.stack([np.argsort(random_keys(50, seed)) for seed in range(400)])
    assert len({tuple(order) for order in orders}) == 400
    spread = 50 / 12**0.5 / 400**0.5  # of the mean position over the seeds
    assert np.abs(orders.mean(axis=0) - 24.5).max() < 4.5 * spread


def test_a_seed_gives_one_split_and_another_seed_another() -> None:
    y = np.repeat([0, 1], [60, 40])
    first, again, other = (stratified(y, ("a", "b"), validation=0.2, test=0.2, seed=s) for s in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize(
    ("sizes", "shares", "message"),
    [
        ([9, 1], (0.15, 0.15), r"class 'b' has 1 examples, too few for the 3 splits: add examples, remove the class"),
        ([9, 2], (0.15, 0.15), r"class 'b' has 2 examples, too few for the 3 splits"),
        ([9, 1], (0, 0.1), r"class 'b' has 1 examples, too few for the 2 splits"),
        ([9, 9], (0.5, 0.5), r"must be shares with a sum below 1, found 0.5 and 0.5"),
        ([9, 9], (1.5, 0), r"validation must be a number at least 0 and below 1, found 1.5"),
        ([9, 9], (0.1, -0.1), r"test must be a number at least 0 and below 1, found -0.1"),
        ([9, 9], (0.1, "some"), r"test must be a number"),
    ],
)
def test_splits_that_cannot_be(sizes: list[int], shares: tuple, message: str) -> None:
    y = np.repeat([0, 1], sizes)
    with pytest.raises(InputError, match=message):
        stratified(y, ("a", "b"), validation=shares[0], test=shares[1], seed=0)

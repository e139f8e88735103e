from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from classgrad._errors import InputError
from classgrad.sampling._groups import group_by_class

VALUES = [3, -7, 3, 40_000_000_000, -7, 3]


@pytest.mark.parametrize(
    "make",
    [
        list,
        tuple,
        np.array,
        torch.tensor,
        lambda v: [torch.tensor(x) for x in v],
        lambda v: np.array(v, dtype=np.int64),
    ],
)
def test_every_make_of_integer_labels_gives_the_same_groups(make: Callable[[list[int]], Any]) -> None:
    groups = group_by_class(make(VALUES))
    assert groups.classes == (-7, 3, 40_000_000_000)
    assert groups.sizes == (2, 3, 1)
    assert groups.members.tolist() == [1, 4, 0, 2, 5, 3]
    assert groups.members.dtype == torch.int64


MAKES = (list, tuple, np.array, lambda v: np.array(v, dtype=object), lambda v: list(np.array(v)))


@pytest.mark.parametrize("make", MAKES)
def test_strings_of_every_make(make: Callable[[list[str]], Any]) -> None:
    groups = group_by_class(make(["dog", "cat", "dog", "ähre"]))
    assert groups.classes == ("cat", "dog", "ähre")
    assert groups.members.tolist() == [1, 0, 2, 3]


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (np.array([127, -128, 127], dtype=np.int8), (-128, 127)),
        (np.array([2**63 + 5, 2**63, 2**63 + 5], dtype=np.uint64), (2**63, 2**63 + 5)),
        (np.array([70_000, 0, 70_000]), (0, 70_000)),
        (torch.tensor([True, False, True]), (0, 1)),
        (np.array([2**16 - 1, 0, 2**16 - 1]), (0, 2**16 - 1)),
    ],
)
def test_ranges_at_the_edges_of_the_integer_types(labels: Any, classes: tuple[int, ...]) -> None:
    groups = group_by_class(labels)
    assert groups.classes == classes
    assert groups.sizes == (1, 2)
    assert groups.members.tolist() == [1, 0, 2]


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        ([], "must not be empty"),
        ([[0, 1], [1, 0]], r"one-dimensional.*\(2, 2\)"),
        (5, r"one-dimensional"),
        ([[0], [1, 2]], "ragged"),
        ([0.0, 1.0], "found float"),
        (torch.tensor([0.5], dtype=torch.bfloat16), "found float"),
        ([1, "a"], "found int, str"),
        (["a", 1], "found int, str"),
        (["a", None], "found NoneType, str"),
        ([b"a"], "found bytes"),
    ],
)
def test_what_cannot_be_labels_is_named(labels: Any, found: str) -> None:
    with pytest.raises(InputError, match=found):
        group_by_class(labels)


def test_declared_classes_without_examples_are_kept_with_size_zero_and_one_warning() -> None:
    with pytest.warns(UserWarning, match=r"no examples of declared classes: 1, 3; .* the other 2 classes") as caught:
        groups = group_by_class([0, 2, 0], declared=range(4))
    assert len(caught) == 1
    assert groups.classes == (0, 1, 2, 3)
    assert groups.sizes == (2, 0, 1, 0)
    assert groups.present == 2


def test_declaring_what_is_there_changes_nothing() -> None:
    labels = ["b", "a", "b"]
    plain, declared = group_by_class(labels), group_by_class(labels, declared={"b", "a"})
    assert (plain.classes, plain.sizes) == (declared.classes, declared.sizes)
    assert group_by_class([1, 0], declared=torch.tensor([1, 0])).classes == (0, 1)


@pytest.mark.parametrize(
    ("declared", "found"),
    [
        ([0], "not in classes: 1, 2, 3, 4, 5 and 1 more"),
        (["0", "1"], "not in classes: 0, 1"),
        ([0, 1, 2, 3, 4, 5, 6, 6], "1 repeated"),
        (7, r"such as range\(7\)"),
    ],
)
def test_a_wrong_declaration_is_an_error(declared: Any, found: str) -> None:
    with pytest.raises(InputError, match=found):
        group_by_class([0, 1, 2, 3, 4, 5, 6], declared=declared)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64, np.uint64])
@pytest.mark.parametrize("spread", [1, 2, 200, 1000])
def test_labels_sorted_part_by_part_come_in_the_order_of_one_stable_sort(
    dtype: type[np.integer[Any]], spread: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("classgrad.sampling._groups._PART", 7)
    least, most = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    spread = min(spread, most - least)
    lowest = most - spread if least == 0 else least  # the end of the range at which arithmetic would overflow
    labels = np.array([lowest + v for v in np.random.default_rng(0).integers(spread, size=100).tolist()], dtype=dtype)
    groups = group_by_class(labels)
    order = np.argsort(labels, kind="stable")
    names, sizes = np.unique(labels, return_counts=True)
    assert groups.members.tolist() == order.tolist()
    assert groups.classes == tuple(names.tolist())
    assert groups.sizes == tuple(sizes.tolist())


def test_classes_may_be_declared_as_numpy_finds_them() -> None:
    labels = np.array(["dog", "cat", "dog"])
    for declared in (np.unique(labels), list(np.unique(labels))):
        assert group_by_class(labels, declared).classes == ("cat", "dog")

"""From the labels people write to class names and numbers, and a split that respects them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from classgrad._errors import InputError
from classgrad.data._checks import number, whole
from classgrad.data._order import random_keys

Labels = npt.NDArray[np.int64]


def class_labels(values: npt.NDArray[Any], origin: str) -> tuple[Labels, tuple[str, ...]]:
    """Labels 0, 1, ... for ``values`` and the names of the classes, the most frequent first.

    >>> class_labels(np.array(["ham", "spam", "ham"]), "mail.csv")
    (array([0, 1, 0]), ('ham', 'spam'))
    """
    if values.dtype.kind == "f":
        if not np.array_equal(values, np.round(values)):
            raise InputError(
                f"{origin}: labels must be texts or whole numbers, found fractions: is this a measurement?"
            )
        if not (np.abs(values) < 2.0**63).all():
            raise InputError(
                f"{origin}: labels must be texts or whole numbers below 2^63, found {values[np.abs(values).argmax()]}"
            )
        values = values.astype(np.int64)
    if values.dtype.kind not in "iubU":
        raise InputError(f"{origin}: labels must be texts or whole numbers, found type {values.dtype}")
    found, codes, counts = np.unique(values, return_inverse=True, return_counts=True)
    try:
        "".join(map(str, found)).encode()
    except UnicodeEncodeError:
        raise InputError(f"{origin}: the names of the classes must be text in UTF-8") from None
    if len(found) < 2:
        raise InputError(f"{origin}: at least 2 classes are needed, found {len(found)}")
    by_size = np.argsort(-counts, kind="stable")
    label_of = np.empty_like(by_size)
    label_of[by_size] = np.arange(len(found))
    return label_of[codes.ravel()], tuple(str(name) for name in found[by_size])


def stratified(
    y: Labels, classes: tuple[str, ...], *, validation: float, test: float, seed: int
) -> tuple[Labels, Labels, Labels]:
    """Positions of training, validation and test examples: of every class the same shares, drawn by ``seed``.

    Every class has at least one example in every split whose share is above 0. Test and validation thus keep the
    natural make of the data: what is measured on them is per class, or the mean over classes, so nothing is gained by
    throwing examples away to balance them.
    """
    shares = (number("validation", validation, least=0, below=1), number("test", test, least=0, below=1))
    if sum(shares) >= 1:
        raise InputError(f"validation and test must be shares with a sum below 1, found {validation} and {test}")
    sizes = np.bincount(y, minlength=len(classes))
    held_out = np.stack([np.maximum(np.round(share * sizes), share > 0) for share in shares]).astype(np.int64)
    short = np.flatnonzero(sizes - held_out.sum(axis=0) < 1)
    if len(short):
        needed = 1 + sum(share > 0 for share in shares)
        raise InputError(
            f"class {classes[short[0]]!r} has {sizes[short[0]]} examples, too few for the {needed} splits: "
            f"add examples, remove the class, or make validation or test smaller"
        )
    order = np.lexsort((random_keys(len(y), whole("seed", seed)), y))
    place = np.arange(len(y)) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # position within the class
    in_validation = place < held_out[0][y[order]]
    in_test = ~in_validation & (place < held_out.sum(axis=0)[y[order]])
    train, validated, tested = (
        np.sort(order[chosen]) for chosen in (~in_validation & ~in_test, in_validation, in_test)
    )
    return train, validated, tested

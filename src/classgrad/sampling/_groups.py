"""Which examples belong to which class: one stable sort of the labels."""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, from_numpy

from classgrad._errors import InputError

Labels: TypeAlias = Tensor | NDArray[Any] | Sequence[int] | Sequence[str]
Classes: TypeAlias = Iterable[int] | Iterable[str]

_RADIX_RANGE = 2**16  # numpy sorts 16-bit keys by radix, several times faster than wider ones
_PART = 2**18  # labels sorted at a time: what they take stays in the processor's cache


@dataclass(frozen=True)
class Groups:
    """The examples of every class, class after class.

    `members` holds all example indices: first those of `classes[0]`, `sizes[0]` of them in ascending order, then
    those of the next class. Classes are in ascending order; a declared class without examples has size 0.
    """

    classes: tuple[int, ...] | tuple[str, ...]
    sizes: tuple[int, ...]
    members: Tensor

    def __len__(self) -> int:
        return len(self.members)

    @property
    def present(self) -> int:
        """The number of classes that have examples."""
        return sum(size > 0 for size in self.sizes)


def group_by_class(labels: Labels, declared: Classes | None = None) -> Groups:
    """Group the examples by label; `declared` names all classes there are, also those without examples."""
    groups = _group(labels, "labels")
    return groups if declared is None else _with_declared(groups, declared)


def as_array(labels: Labels) -> NDArray[Any]:
    """Labels of any make as a numpy array on the host."""
    if isinstance(labels, Tensor):
        return (labels.detach().float() if labels.is_floating_point() else labels).cpu().numpy()
    if isinstance(labels, (list, tuple)) and labels and isinstance(labels[0], str):
        return np.asarray(labels, dtype=object)  # numpy's fixed-width strings would cost four bytes a character
    try:
        return np.asarray(labels)
    except ValueError:
        raise InputError("labels must be one integer or string per example; found a ragged sequence") from None


def _group(labels: Labels, parameter: str) -> Groups:
    codes, names = _integers(labels, parameter)
    low, high = int(codes.min()), int(codes.max())
    observed, sizes, order = _narrow(codes, low, high) if high - low < _RADIX_RANGE else _wide(codes)
    classes = tuple(observed) if names is None else tuple(names)
    return Groups(classes, tuple(sizes), from_numpy(order))


def _with_declared(groups: Groups, declared: Classes) -> Groups:
    if isinstance(declared, int):
        raise InputError(f"classes must list the labels of all classes, such as range({declared}); found {declared}")
    names: Any = declared if isinstance(declared, (Tensor, np.ndarray)) else list(declared)
    wanted = _group(names, "classes")
    if len(wanted) != len(wanted.classes):
        raise InputError(f"classes must name every class once; found {len(wanted) - len(wanted.classes)} repeated")
    sizes = dict(zip(groups.classes, groups.sizes, strict=True))
    strangers = [name for name in groups.classes if name not in set(wanted.classes)]
    if strangers:
        raise InputError(f"labels may hold declared classes only; not in classes: {_listing(strangers)}")
    empty = [name for name in wanted.classes if name not in sizes]
    if empty:
        warnings.warn(
            f"no examples of declared classes: {_listing(empty)}; every batch is made of the other"
            f" {len(groups.classes)} classes",
            stacklevel=5,
        )
    return Groups(wanted.classes, tuple(sizes.get(name, 0) for name in wanted.classes), groups.members)


def _listing(names: Sequence[object], most: int = 5) -> str:
    shown = ", ".join(repr(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def _integers(labels: Labels, parameter: str) -> tuple[NDArray[Any], list[str] | None]:
    """Labels as an integer array, with the names the integers stand for when the labels are strings."""
    array = as_array(labels)
    if array.ndim != 1:
        raise InputError(f"{parameter} must be one-dimensional, one class per example; found shape {array.shape}")
    if len(array) == 0:
        raise InputError(f"{parameter} must not be empty")
    if array.dtype.kind in "biu":
        return array.astype(np.int64) if array.dtype.kind == "b" else array, None
    values = labels if isinstance(labels, list) else array.tolist()
    kinds = {type(value) for value in values}
    if kinds == {np.str_}:
        values, kinds = [str(value) for value in values], {str}
    if kinds != {str}:
        found = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise InputError(f"{parameter} must be all integers or all strings; found {found}")
    names = sorted(set(values))
    number = {name: code for code, name in enumerate(names)}
    return np.fromiter((number[value] for value in values), dtype=np.int64, count=len(values)), names


def _narrow(codes: NDArray[Any], low: int, high: int) -> tuple[list[int], list[int], NDArray[np.int64]]:
    """Classes, sizes and stable order of codes that are not far apart, in the memory of the order alone.

    Parts are sorted one by one, and each part's examples of a class go behind those of the parts before it.
    """
    keys = partial(_keys, low=low, dtype=np.uint8 if high - low < 2**8 else np.uint16)
    parts = [slice(start, start + _PART) for start in range(0, len(codes), _PART)]
    counts = np.zeros(high - low + 1, dtype=np.int64)
    for part in parts:
        counts += np.bincount(keys(codes[part]), minlength=len(counts))
    free = np.cumsum(counts) - counts  # where the next example of each class goes
    order = np.empty(len(codes), dtype=np.int64)
    for part in parts:
        code = keys(codes[part])
        local = np.argsort(code, kind="stable")
        here = np.bincount(code, minlength=len(counts))
        order[np.repeat(free - np.cumsum(here) + here, here) + np.arange(len(code))] = local + part.start
        free += here
    observed = np.flatnonzero(counts)
    return [low + offset for offset in observed.tolist()], counts[observed].tolist(), order


def _keys(codes: NDArray[Any], low: int, dtype: type[np.unsignedinteger[Any]]) -> NDArray[np.unsignedinteger[Any]]:
    """Codes counted from ``low``; the arithmetic is modulo 2**64, so that it holds for codes of any kind and sign."""
    return (codes.astype(np.uint64) - np.uint64(low % 2**64)).astype(dtype)


def _wide(codes: NDArray[Any]) -> tuple[list[int], list[int], NDArray[np.int64]]:
    """Classes, sizes and stable order of any codes."""
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    return ordered[starts].tolist(), np.diff(np.append(starts, len(codes))).tolist(), order

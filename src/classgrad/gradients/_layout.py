"""Which example belongs to which class, worked out once per step."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from typing import cast

import torch
from torch import Tensor

from classgrad._errors import InputError
from classgrad.gradients import kernels


class ClassLayout:
    """The classes of a batch and how to bring its examples into class order.

    ``classes`` are the labels in ascending order (those declared, or those present), ``index`` the position of each
    example's class in them, ``counts`` the number of examples of each, ``order`` what sorts the examples by class
    (None if they are). ``labels`` and ``sizes`` are the classes and counts as plain numbers, ``examples`` is their sum.
    """

    def __init__(self, classes: Tensor, index: Tensor) -> None:
        self.classes = classes
        self.index = index
        self.counts = torch.bincount(index, minlength=len(classes))
        # One transfer for both: each is a wait for the device.
        self.labels, self.sizes = cast("list[list[int]]", torch.stack((classes, self.counts)).tolist())
        self.examples = sum(self.sizes)
        self.order = None if _ascending(index) else index.argsort(stable=True)

    def __len__(self) -> int:
        return len(self.sizes)

    @cached_property
    def equal(self) -> int | None:
        """The number of examples of each class if it is the same for all, else None."""
        return self.sizes[0] if self.sizes and min(self.sizes) == max(self.sizes) else None

    @cached_property
    def tally(self) -> Counter[int]:
        """How many classes there are of each size."""
        return Counter(self.sizes)

    @cached_property
    def largest(self) -> int:
        """The most examples of a class."""
        return max(self.sizes, default=0)

    @cached_property
    def bounds(self) -> list[tuple[int, int]]:
        """Where each class starts and stops among grouped examples."""
        return [(stop - size, stop) for stop, size in zip(accumulate(self.sizes), self.sizes, strict=True)]

    def span(self, start: int, stop: int) -> tuple[int, int]:
        """Return where the grouped examples of a range of classes start and stop."""
        return (self.bounds[start][0], self.bounds[stop - 1][1]) if stop > start else (0, 0)

    def prepare(self) -> None:
        """Make what is otherwise made when first needed by waiting for the device, which a recording must not do."""
        _ = self._members
        if kernels.available(torch.empty(0, device=self.index.device)):
            _ = self.segments, self.singles

    @cached_property
    def segments(self) -> kernels.Segments:
        """The classes as segments of grouped examples, for the kernels."""
        return kernels.Segments(self.sizes, self.index.device)

    @cached_property
    def singles(self) -> kernels.Segments:
        """The examples as segments of their own, for the kernels."""
        return kernels.Segments([1] * self.examples, self.index.device)

    def grouped(self) -> ClassLayout:
        """Return the layout of the same batch in class order."""
        out = copy.copy(self)
        out.__dict__ = {**vars(self), "index": self.group(self.index), "order": None}
        for made in ("_members", "grouped_index", "singles"):
            out.__dict__.pop(made, None)
        return out

    def group(self, values: Tensor) -> Tensor:
        """Return the examples (first dimension) in class order; the same tensor if they already are."""
        return values if self.order is None else values.index_select(0, self.order)

    @cached_property
    def grouped_index(self) -> Tensor:
        """The class position of each grouped example."""
        return self.group(self.index)

    @cached_property
    def _members(self) -> Tensor:
        return torch.nn.functional.one_hot(self.index, max(len(self), 1)).T[: len(self)].float()

    def members(self, dtype: torch.dtype) -> Tensor:
        """Return the (classes x examples) matrix of ones that sums the batch by class."""
        return self._members.to(dtype)

    def sum(self, values: Tensor) -> Tensor:
        """Sum per-example values, in the order of the batch, by class: (N, ...) to (L, ...)."""
        if values.is_cuda:  # index_add is not deterministic there
            if self.order is None and self.equal == 1:
                return values
            if self.order is None and self.equal:
                return values.view(len(self), self.equal, *values.shape[1:]).sum(1)
            rows = values.reshape(len(values), -1)
            return (self.members(values.dtype) @ rows).view(len(self), *values.shape[1:])
        return values.new_zeros(len(self), *values.shape[1:]).index_add_(0, self.index, values)


def one_class(label: int, count: int, device: torch.device) -> ClassLayout:
    """Lay out ``count`` examples of one class without waiting for the device."""
    layout = ClassLayout.__new__(ClassLayout)
    layout.classes = torch.full((1,), label, device=device)
    layout.index = torch.zeros(count, dtype=torch.int64, device=device)
    layout.counts = torch.full((1,), count, device=device)
    layout.labels, layout.sizes, layout.examples, layout.order = [label], [count], count, None
    return layout


def _ascending(index: Tensor) -> bool:
    return len(index) < 2 or bool((index[1:] >= index[:-1]).all())


def class_layout(y: Tensor, classes: Tensor | None) -> ClassLayout:
    """Lay out the labels ``y``, over the declared ``classes`` (ascending) or over those present."""
    if classes is None:
        present, index = y.unique(return_inverse=True)  # type: ignore[no-untyped-call]
        return ClassLayout(present, index)
    classes = classes.to(y.device)
    index = torch.searchsorted(classes, y).clamp_max(len(classes) - 1)
    unknown = classes[index] != y
    if bool(unknown.any()):
        raise InputError(
            f"Parameter `y` should hold only the declared classes {_short(classes.tolist())}. "
            f"Found {_short(sorted(set(y[unknown].tolist())))}."
        )
    return ClassLayout(classes, index)


def declared_classes(classes: int | Sequence[int] | Tensor | None) -> Tensor | None:
    """Return the declared labels in ascending order; an int K declares 0 … K−1."""
    if classes is None:
        return None
    values = torch.arange(max(0, classes)) if isinstance(classes, int) else torch.as_tensor(classes)
    if values.dim() != 1 or not len(values) or values.is_floating_point():
        raise InputError(
            "Parameter `classes` should be a positive number of classes or a sequence of integer labels. "
            f"Found {classes!r}."
        )
    unique: Tensor = values.to(torch.int64).unique()  # type: ignore[no-untyped-call]
    if len(unique) != len(values):
        raise InputError(f"Parameter `classes` should not repeat a label. Found {_short(values.tolist())}.")
    return unique


def _short(values: list[int]) -> str:
    return ", ".join(map(str, values[:10])) + (", …" if len(values) > 10 else "")

"""Which example belongs to which class, worked out once per step."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from classgrad._errors import InputError
from classgrad.gradients import kernels
from classgrad.gradients._memo import Memo, make_up_of

Labels = npt.NDArray[np.int64]

_KEPT, _KEPT_ELEMENTS = 8, 2**20
"""Layouts that are kept, and how large they may be: the matrix that sums a batch by class is classes times examples."""


_SPREAD = 8
"""Labels are told apart by counting, which is faster than sorting, where they are this many times as far apart as there
are examples at most."""


class ClassLayout:
    """The classes of a batch and how to bring its examples into class order.

    ``classes`` are the labels in ascending order (those declared, or those present), ``index`` the position of each
    example's class in them, ``counts`` the number of examples of each, ``order`` what sorts the examples by class
    (None if they are). ``labels`` are the classes as plain numbers; ``make_up`` says how many examples there are of
    each, ``examples`` of all.
    """

    recorded = False
    """Whether steps on it are to be recorded and replayed, so that their launches take no time."""
    _offsets: Tensor | None = None
    _packed: Tensor
    """What offsets, classes, counts, index and order are parts of."""

    def __init__(self, classes: Tensor, index: Tensor) -> None:
        self._lay_out(classes.cpu().numpy(), index.cpu().numpy(), index.device)

    def _lay_out(self, classes: Labels, index: Labels, device: torch.device) -> None:
        """Work everything out on the host, where it takes microseconds, and send it to the device in one piece."""
        counts = np.bincount(index, minlength=len(classes))
        self._labels = classes
        self.make_up = make_up_of(counts)
        self.examples = len(index)
        # As int32 for the kernels; they come first, where memory is aligned as for a tensor of their own.
        offsets = np.zeros((len(counts) + 2) // 2 * 2, np.int32)
        np.cumsum(counts, out=offsets[1 : len(counts) + 1])
        parts = [offsets.view(np.int64), classes, counts, index]
        if (index[1:] < index[:-1]).any():
            # NumPy sorts short numbers by their digits, in a third of the time
            short = index.astype(np.uint16) if len(classes) <= 2**16 else index
            parts.append(short.argsort(kind="stable"))
        # Without waiting: what is not pinned has been read by the time the call returns.
        self._unpack(torch.from_numpy(np.concatenate(parts)).to(device, non_blocking=True), len(parts) > 4)

    def _unpack(self, packed: Tensor, shuffled: bool) -> None:
        ends = [self.examples] * (2 if shuffled else 1)
        parts = torch.split(packed, [(len(self) + 2) // 2, len(self), len(self), *ends])
        offsets, self.classes, self.counts, self.index = parts[:4]
        self._packed = packed
        self._offsets = offsets.view(torch.int32)[: len(self) + 1]
        self.order = parts[4] if shuffled else None

    def __len__(self) -> int:
        return len(self.make_up)

    @cached_property
    def labels(self) -> list[int]:
        """The classes as plain numbers."""
        labels: list[int] = self._labels.tolist()
        return labels

    @property
    def sizes(self) -> list[int]:
        """The number of examples of each class."""
        return self.make_up.sizes

    @property
    def equal(self) -> int | None:
        """The number of examples of each class if it is the same for all, else None."""
        return self.make_up.equal

    @property
    def memo(self) -> Memo:
        """What was found to follow from the sizes of the classes alone, shared by all batches with such classes."""
        return self.make_up.memo

    @property
    def bounds(self) -> list[tuple[int, int]]:
        """Where each class starts and stops among grouped examples."""
        return list(pairwise(self.make_up.ends))

    def span(self, start: int, stop: int) -> tuple[int, int]:
        """Return where the grouped examples of a range of classes start and stop."""
        ends = self.make_up.ends
        return (ends[start], ends[stop]) if stop > start else (0, 0)

    def prepare(self) -> None:
        """Make what is otherwise made when first needed by waiting for the device, which a recording must not do."""
        self.recorded = True
        _ = self._members
        if kernels.available(torch.empty(0, device=self.index.device)):
            _ = self.segments, self.singles

    @property
    def adds_at_once(self) -> bool:
        """Whether kernels should add up by class as they go, for which examples must lie by class.

        It takes an operation more than to give every example's share, and these are added up all together at the end:
        it is for operations that are recorded.
        """
        return self.recorded and self.order is None

    @cached_property
    def segments(self) -> kernels.Segments:
        """The classes as segments of grouped examples, for the kernels."""
        return kernels.Segments(self.make_up, self.index.device, self._offsets)

    @cached_property
    def singles(self) -> kernels.Segments:
        """The examples as segments of their own, for the kernels."""
        offsets = torch.arange(self.examples + 1, dtype=torch.int32, device=self.index.device)
        return kernels.Segments(make_up_of(np.ones(self.examples, np.int64)), self.index.device, offsets)

    def grouped(self) -> ClassLayout:
        """Return the layout of the same batch in class order."""
        return self if self.order is None else self._grouped

    @cached_property
    def _grouped(self) -> ClassLayout:
        return self._again(torch.cat([self._packed[: -2 * self.examples], self.group(self.index)]), shuffled=False)

    def placed(self) -> ClassLayout:
        """Return a layout in memory of its own, which :meth:`move_to` can fill."""
        return self._again(self._packed.clone(), self.order is not None)

    def renewed(self) -> ClassLayout:
        """Return a layout that is always that of the same batch, but works out for itself what follows from it."""
        return self._again(self._packed, self.order is not None)

    def move_to(self, place: ClassLayout) -> None:
        """Have a layout of as many examples of as many classes, in such an order, be that of this batch from now on."""
        place._packed.copy_(self._packed)

    def _again(self, packed: Tensor, shuffled: bool) -> ClassLayout:
        """Return a layout of the same classes, without what was worked out from the order of the examples."""
        out = copy.copy(self)
        made = ("_members", "_grouped", "grouped_index", "segments", "singles")
        out.__dict__ = {name: value for name, value in vars(self).items() if name not in made}
        out._unpack(packed, shuffled)
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
            if kernels.available(values):
                sums = kernels.class_row_sums(rows[:, None], self.segments, order=self.order)
            else:
                sums = self.members(values.dtype) @ rows
            return sums.view(len(self), *values.shape[1:])
        return values.new_zeros(len(self), *values.shape[1:]).index_add_(0, self.index, values)

    def sum_rows(self, values: Tensor, out: Tensor) -> None:
        """Write the sums by class of (N, W) values to (L, W), whatever is in it."""
        if not values.is_cuda:
            out.zero_().index_add_(0, self.index, values)
        elif self.order is None and self.equal:
            torch.sum(values.view(len(self), self.equal, -1), 1, out=out)
        elif kernels.available(values):
            kernels.class_row_sums(values[:, None], self.segments, order=self.order, out=out)
        else:
            torch.mm(self.members(values.dtype), values, out=out)


def one_class(label: int, count: int, device: torch.device) -> ClassLayout:
    """Lay out ``count`` examples of one class without waiting for the device."""
    layout = ClassLayout.__new__(ClassLayout)
    layout.classes = torch.full((1,), label, device=device)
    layout.index = torch.zeros(count, dtype=torch.int64, device=device)
    layout.counts = torch.full((1,), count, device=device)
    layout._labels, layout.make_up = np.array([label]), make_up_of(np.array([count]))
    layout.examples, layout.order = count, None
    return layout


def class_layout(y: Tensor, classes: Tensor | None) -> ClassLayout:
    """Lay out the labels ``y``, over the declared ``classes`` (ascending) or over those present.

    The one wait for a device that holds the labels is their transfer to the host.
    """
    return _class_layout(y.cpu().numpy(), None if classes is None else classes.cpu().numpy(), y.device)


def _class_layout(y: Labels, classes: Labels | None, device: torch.device) -> ClassLayout:
    if classes is None:
        classes, index = _present(y)
    else:
        index = np.searchsorted(classes, y).clip(max=len(classes) - 1)
        unknown = classes[index] != y
        if unknown.any():
            raise InputError(
                f"Parameter `y` should hold only the declared classes {_short(classes.tolist())}. "
                f"Found {_short(np.unique(y[unknown]).tolist())}."
            )
    layout = ClassLayout.__new__(ClassLayout)
    layout._lay_out(classes, index, device)
    return layout


def _present(y: Labels) -> tuple[Labels, Labels]:
    """Return the labels there are, in ascending order, and the position of each example's among them."""
    low, high = (int(y.min()), int(y.max())) if len(y) else (0, -1)
    if high - low > _SPREAD * len(y):
        classes, index = np.unique(y, return_inverse=True)
        return classes, index
    offsets = y - low
    there = np.bincount(offsets) > 0
    return there.nonzero()[0] + low, (there.cumsum() - 1)[offsets]


class Layouts:
    """The layouts of labels over the same declared classes; those of the latest batches are known again.

    Samplers often make batches alike, and what is derived from a layout when first needed then is there already.
    """

    def __init__(self, classes: Tensor | None) -> None:
        self._classes = None if classes is None else classes.cpu().numpy()
        self._known: dict[Hashable, ClassLayout] = {}

    def __call__(self, y: Tensor) -> ClassLayout:
        """Lay out the labels ``y``."""
        host = y.cpu().numpy()
        # What was sent on one stream must not be read on another that did not wait for it.
        stream = torch.cuda.current_stream(y.device) if y.is_cuda else None
        key = (host.tobytes(), y.device, stream)
        layout = self._known.get(key)
        if layout is None:
            layout = _class_layout(host, self._classes, y.device)
            if len(layout) * layout.examples <= _KEPT_ELEMENTS:
                if len(self._known) >= _KEPT:
                    del self._known[next(iter(self._known))]
                self._known[key] = layout
        return layout


def declared_classes(classes: int | Sequence[int] | Tensor | None) -> Tensor | None:
    """Return the declared labels in ascending order; an int K declares 0 … K−1."""
    if classes is None:
        return None
    try:
        values = torch.arange(max(0, classes)) if type(classes) is int else torch.as_tensor(classes)
    except (RuntimeError, TypeError, ValueError):
        values = torch.empty(0)
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

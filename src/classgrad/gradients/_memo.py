"""What follows from the sizes of the classes alone is worked out once, however the labels of a batch are shuffled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from functools import cached_property, lru_cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T")
Counts = npt.NDArray[np.int64]

_KEPT = 1024
"""Findings that are kept for a make-up of classes."""

_MAKE_UPS = 64
"""Make-ups of classes whose findings are kept."""


class Memo(dict[Any, Any]):
    """Findings by what they follow from; all are forgotten when they have become many."""

    def __setitem__(self, key: Any, value: Any) -> None:
        """Keep a finding."""
        if len(self) >= _KEPT:
            self.clear()
        super().__setitem__(key, value)

    def recall(self, key: Hashable, make: Callable[..., T], *given: Any, **named: Any) -> T:
        """Return ``make(*given, **named)``, which is never None, or what it was when this key was first asked for."""
        found: T | None = self.get(key)
        if found is None:
            found = self[key] = make(*given, **named)
        return found


class MakeUp:
    """How many examples there are of each class, and what follows from that alone.

    With thousands of classes a pass over a list of them takes longer than launching a step, so there is none that is
    not asked for.
    """

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self.key = counts.tobytes()
        """Equal where the sizes are, and hashed but once."""
        self.memo = Memo()
        """What was found to follow from the sizes and the shapes of layers."""

    def __len__(self) -> int:
        return len(self._counts)

    @cached_property
    def sizes(self) -> list[int]:
        """The sizes as plain numbers."""
        sizes: list[int] = self._counts.tolist()
        return sizes

    @cached_property
    def examples(self) -> int:
        """Their sum."""
        return int(self._counts.sum())

    @cached_property
    def largest(self) -> int:
        """The most examples of a class."""
        return int(self._counts.max(initial=0))

    @cached_property
    def complete(self) -> bool:
        """Whether there are examples of every class."""
        return bool(self._counts.all())

    @cached_property
    def equal(self) -> int | None:
        """The number of examples of each class if it is the same for all, else None."""
        return self.largest if len(self) and (self._counts == self.largest).all() else None

    @cached_property
    def tally(self) -> Counter[int]:
        """How many classes there are of each size."""
        sizes, classes = np.unique(self._counts, return_counts=True)
        return Counter(dict(zip(sizes.tolist(), classes.tolist(), strict=True)))

    @cached_property
    def ends(self) -> list[int]:
        """Where each class starts among grouped examples, and where the last one stops."""
        return [0, *self._counts.cumsum().tolist()]


def make_up_of(counts: Counts) -> MakeUp:
    """Return what all batches share whose classes have these numbers of examples."""
    return _make_up(counts.tobytes())


@lru_cache(_MAKE_UPS)
def _make_up(key: bytes) -> MakeUp:
    return MakeUp(np.frombuffer(key, np.int64))

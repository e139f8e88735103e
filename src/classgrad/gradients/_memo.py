"""What follows from the sizes of the classes alone is worked out once, however the labels of a batch are shuffled."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any, TypeVar

T = TypeVar("T")

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


@lru_cache(_MAKE_UPS)
def memo_of(sizes: tuple[int, ...]) -> Memo:
    """Return the memo that all batches share whose classes have these numbers of examples."""
    return Memo()

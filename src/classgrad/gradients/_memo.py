"""What follows from the sizes of the classes alone is worked out once, however the labels of a batch are shuffled."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

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


@lru_cache(_MAKE_UPS)
def memo_of(sizes: tuple[int, ...]) -> Memo:
    """Return the memo that all batches share whose classes have these numbers of examples."""
    return Memo()

"""The few rules that numbers given as options must keep."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real

from classgrad._errors import InputError


def whole(name: str, value: object, *, least: int = 0) -> int:
    """Return ``value`` as an int of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise InputError(f"{name} must be a whole number of at least {least}, found {value!r}")
    return int(value)


def number(
    name: str, value: object, *, least: float = -math.inf, below: float = math.inf, above: float = -math.inf
) -> float:
    """Return ``value`` as a finite float with ``above < value``, ``least <= value`` and ``value < below``."""
    found = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    if not found or not (least <= value < below and value > above):  # type: ignore[operator]
        bounds = [(least, "at least"), (above, "above"), (below, "below")]
        rule = " and ".join(f"{word} {bound:g}" for bound, word in bounds if math.isfinite(bound))
        raise InputError(f"{name} must be a number {rule}".rstrip() + f", found {value!r}")
    return float(value)  # type: ignore[arg-type]


def choice(name: str, value: object, choices: Sequence[str]) -> str:
    """Return ``value`` if it is one of ``choices``."""
    if not isinstance(value, str) or value not in choices:
        raise InputError(f"{name} must be one of {', '.join(choices)}, found {value!r}")
    return value

"""Plain JSON: what records become, and what the settings of a run must be."""

from __future__ import annotations

import json
import math
from dataclasses import fields, is_dataclass
from typing import Any

from classgrad._errors import InputError


class Record:
    """A frozen dataclass that turns into plain JSON values."""

    def to_json(self) -> dict[str, Any]:
        """Give the fields as dicts, lists, strings and numbers; None for what is infinite or undefined."""
        plain: dict[str, Any] = _plain(self)
        return plain


def dump_json(value: Any) -> str:
    """Write plain JSON values as a string in ASCII; anything JSON has no exact form for is an error."""
    try:
        text = json.dumps(value, allow_nan=False, sort_keys=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"Parameter `meta` should be plain JSON (no tensors, nan or inf). Found: {error}.") from error
    if json.loads(text) != value:
        raise InputError("Parameter `meta` should be plain JSON: lists, not tuples, and string keys alone.")
    return text


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

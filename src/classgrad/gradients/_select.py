"""Parts of a batch, whatever its inputs look like."""

from __future__ import annotations

import copy
from collections import UserDict
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from classgrad._errors import InputError
from classgrad.gradients._layout import ClassLayout


def examples_of(x: Any) -> int:
    """Return the number of examples of a batch's inputs: a tensor, or tuples, lists and mappings of tensors."""
    found = {len(tensor) for tensor in _tensors(x)}
    if len(found) != 1:
        raise InputError(
            "Parameter `x` should hold tensors with the examples in their first dimension. "
            f"Found {', '.join(map(str, sorted(found))) or 'none'}."
        )
    return found.pop()


def holds(x: Any, examples: int) -> bool:
    """Whether a batch's inputs are tensors, or tuples, lists and mappings of them, of so many examples each."""
    found = [len(tensor) if tensor.dim() else 0 for tensor in _tensors(x)]
    return bool(found) and all(length == examples for length in found)


def _tensors(x: Any) -> Iterator[Tensor]:
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, (tuple, list, Mapping)):
        for part in x.values() if isinstance(x, Mapping) else x:
            yield from _tensors(part)


def select(x: Any, part: Tensor) -> Any:
    """Return the examples at the positions ``part``; what holds no examples is passed on as it is."""
    if isinstance(x, Tensor):
        return x[part.to(x.device)]
    if isinstance(x, Mapping):
        parts = {name: select(value, part) for name, value in x.items()}
        if type(x) is dict or not isinstance(x, (dict, UserDict)):
            return parts
        out = copy.copy(x)  # of its own kind, with whatever else it has
        out.update(parts)
        return out
    if isinstance(x, (tuple, list)):
        values = [select(value, part) for value in x]
        return type(x)(*values) if hasattr(x, "_fields") else type(x)(values)
    return x


def class_parts(y: Tensor, layout: ClassLayout, chunk: int | None) -> Iterator[Tensor]:
    """Yield the positions of the examples class by class, at most ``chunk`` at a time."""
    order = y.argsort(stable=True)
    for first, last in layout.bounds:
        for start in range(first, last, chunk or max(1, last - first)):
            yield order[start : min(last, start + chunk) if chunk else last]

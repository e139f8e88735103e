"""What the host does to launch a kernel, as little of it as possible: the device waits for Python more than for memory.

Triton looks at every argument of every launch to find the compiled kernel that suits it. What it looks at are types,
the values of numbers and whether pointers are multiples of 16, so a launch whose arguments are alike in these takes the
same compiled kernel, which can be launched as it is.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator"

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import triton
from torch import Tensor

_KEPT = 4096
"""Launches that are known again."""


class Kernel:
    """A function of Triton that is launched as ``kernel[grid](*arguments, **options)``."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self._names: Sequence[str] = function.arg_names
        self._known: dict[object, Any] = {}

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return partial(self._launch, grid)

    def _launch(self, grid: tuple[int, ...], *args: Any, num_warps: int, num_stages: int = 3, **options: Any) -> None:
        values = (*args, *[options[name] for name in self._names[len(args) :]])
        device = torch.cuda.current_device() if args[0].is_cuda else None
        key = (device, num_warps, num_stages, *[_kind(v) if isinstance(v, Tensor) else v for v in values])
        compiled = self._known.get(key)
        if compiled is not None:
            compiled[(*grid, 1, 1)[:3]](*values)
            return
        compiled = self._function[grid](*values, num_warps=num_warps, num_stages=num_stages)
        if compiled is not None:  # as it is in Triton's interpreter, which compiles nothing
            if len(self._known) >= _KEPT:
                self._known.clear()
            self._known[key] = compiled


def launched(function: Callable[..., None] | None = None, *, do_not_specialize: Sequence[str] = ()) -> Any:
    """Make a function of Triton one that the host can launch."""
    if function is None:
        return partial(launched, do_not_specialize=do_not_specialize)
    return Kernel(triton.jit(function, do_not_specialize=list(do_not_specialize)))


def _kind(tensor: Tensor) -> tuple[torch.dtype, bool]:
    return tensor.dtype, tensor.data_ptr() % 16 == 0


def cdiv(a: int, b: int) -> int:
    """Return ⌈a / b⌉, as triton.cdiv does at the price of a small kernel.

    >>> cdiv(7, 2), cdiv(0, 2)
    (4, 0)
    """
    return -(-a // b)


def next_power_of_2(n: int) -> int:
    """Return the least power of two that is not below n, and 0 for 0.

    >>> [next_power_of_2(n) for n in (0, 1, 2, 3, 8, 9)]
    [0, 1, 2, 4, 8, 16]
    """
    return 1 << (n - 1).bit_length() if n > 0 else 0

"""What the host does to launch a kernel, as little of it as possible: the device waits for Python more than for memory.

Triton looks at every argument of every launch to find the compiled kernel that suits it. What it looks at are types,
the values of numbers and whether pointers are multiples of 16, so a launch whose arguments are alike in these takes the
same compiled kernel, which can be launched as it is. Where all of a launch but its tensors follows from shapes, it is
settled once (:class:`Launch`) and the tensors are all that is looked at.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator"

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

KEPT = 4096
"""Launches that are known again."""

Place = Callable[[str, tuple[int, ...], Tensor], Tensor]
"""Gives out memory to work in: ``place(use, shape, like)`` is good until the same use asks again."""


def fresh(use: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Give out memory that is good for as long as somebody has it."""
    return like.new_empty(shape)


class Kernel:
    """A function of Triton that is launched as ``kernel[grid](*arguments, **options)``."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self._names: Sequence[str] = function.arg_names
        self._known: dict[object, Any] = {}

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return partial(self._launch, grid)

    def settle(self, grid: tuple[int, ...], *, num_warps: int, num_stages: int = 3, **numbers: Any) -> Launch:
        """Return a launch of which only the tensors are open: all arguments but these are given, by name."""
        return Launch(self, grid, num_warps, num_stages, numbers)

    def _launch(self, grid: tuple[int, ...], *args: Any, num_warps: int, num_stages: int = 3, **options: Any) -> None:
        self.launch(grid, (*args, *[options[name] for name in self._names[len(args) :]]), num_warps, num_stages)

    def launch(self, grid: tuple[int, ...], values: Sequence[Any], num_warps: int, num_stages: int) -> Any:
        """Launch on all arguments in their order; return what was compiled for them, None if nothing was."""
        device = torch.cuda.current_device() if values[0].is_cuda else None
        key = (device, num_warps, num_stages, *[_kind(v) if isinstance(v, Tensor) else v for v in values])
        compiled = self._known.get(key)
        if compiled is not None:
            compiled[(*grid, 1, 1)[:3]](*values)
            return compiled
        compiled = self._function[grid](*values, num_warps=num_warps, num_stages=num_stages)
        if compiled is not None:  # as it is in Triton's interpreter, which compiles nothing
            if len(self._known) >= KEPT:
                self._known.clear()
            self._known[key] = compiled
        return compiled

    @property
    def names(self) -> Sequence[str]:
        """The arguments in their order."""
        return self._names


class Launch:
    """A kernel with its grid and all numbers, to be called with its tensors in their order."""

    def __init__(
        self, kernel: Kernel, grid: tuple[int, ...], num_warps: int, num_stages: int, numbers: dict[str, Any]
    ) -> None:
        self._kernel = kernel
        self._grid = grid
        self._full_grid = (*grid, 1, 1)[:3]
        self._options = (num_warps, num_stages)
        self._values = [numbers.get(name) for name in kernel.names]
        self._places = [i for i, name in enumerate(kernel.names) if name not in numbers]
        self._known: dict[object, Any] = {}

    def __call__(self, *tensors: Tensor | None) -> None:
        """Launch on these tensors, of which the first is one."""
        values = self._values.copy()
        pointers = 0  # all of them at once: most are multiples of 16
        for place, tensor in zip(self._places, tensors, strict=True):
            if tensor is not None:
                values[place] = pointer = tensor.data_ptr()  # a number does for a tensor, and is taken as it is
                pointers |= pointer
        device = _current_device() if tensors[0].is_cuda else None  # type: ignore[union-attr]
        key = (device, *[None if tensor is None else tensor.dtype for tensor in tensors])
        if pointers % 16:
            key += tuple([tensor is not None and tensor.data_ptr() % 16 == 0 for tensor in tensors])
        known = self._known.get(key)
        if known is None:
            self._settle(key, tensors)
        elif device is None or known.launch is None or _watched():
            known.compiled[self._full_grid](*values)
        else:
            known.launch(*self._full_grid, _stream(device), *known.ready, *values)

    def _settle(self, key: object, tensors: Sequence[Tensor | None]) -> None:
        values = self._values.copy()
        for place, tensor in zip(self._places, tensors, strict=True):
            values[place] = tensor
        compiled = self._kernel.launch(self._grid, values, *self._options)
        if compiled is not None:
            self._known[key] = _Known.of(compiled)


class _Known(NamedTuple):
    """What was compiled, and how it is launched without telling those who asked to hear of launches: nobody did."""

    compiled: Any
    launch: Any
    """None where it takes more than arguments: memory to work in, or a Triton whose way to launch is not known here."""
    ready: tuple[Any, ...]

    @classmethod
    def of(cls, compiled: Any) -> _Known:
        run: Any = getattr(compiled, "run", None) if _KNOWN_TRITON else None
        if getattr(run, "launch", None) is None or run.global_scratch_size or run.profile_scratch_size:
            return cls(compiled, None, ())
        ways = (run.launch_cooperative_grid, run.launch_pdl, None, None)
        return cls(compiled, run.launch, (compiled.function, *ways, compiled.packed_metadata, None, None, None))


# torch.cuda.current_device and the current stream's number, without the question whether CUDA was used before
_current_device: Any = getattr(torch._C, "_cuda_getDevice", None)
_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)


def _watched() -> bool:
    """Whether somebody hears of launches."""
    runtime = triton.knobs.runtime
    return bool(runtime.launch_enter_hook.calls or runtime.launch_exit_hook.calls)


_KNOWN_TRITON = triton.__version__.startswith("3.6.")


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

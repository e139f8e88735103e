"""A reader of pickles that can build arrays, lists, dicts, strings and numbers, and nothing else.

A pickle is a program: it may call anything it names. Here the only names it can reach are the three that an array of
numbers is made of, and those lead to the stand-ins below, which check what they are given. No code of numpy sees
unchecked content.
"""

from __future__ import annotations

import io
import pickle
import re
from typing import Any

import numpy as np
import numpy.typing as npt

from classgrad._errors import InputError

_NUMBERS = re.compile(r"[biuf][1248]")


class _Dtype:
    """Stand-in for ``numpy.dtype``: a code such as ``u1`` and a byte order."""

    __slots__ = ("code", "order")

    def __init__(self, code: object, align: object = False, copy: object = True) -> None:
        self.code = code.decode("ascii") if isinstance(code, bytes) else str(code)
        self.order = "<"
        if not _NUMBERS.fullmatch(self.code):
            raise pickle.UnpicklingError(f"arrays of type {self.code!r} are not accepted")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        order = state[1].decode("ascii") if isinstance(state[1], bytes) else str(state[1])
        self.order = {"<": "<", ">": ">", "|": "|", "=": "<"}[order]


class _Array:
    """Stand-in for an array: a shape, a type and the bytes of the numbers."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: npt.NDArray[Any] | None = None

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, content = state
        if type(dtype) is not _Dtype or type(content) is not bytes:
            raise pickle.UnpicklingError("an array must be made of numbers")
        flat = np.frombuffer(content, dtype=np.dtype(dtype.order + dtype.code))
        self.value = flat.reshape(shape, order="F" if fortran else "C")


class _Reconstruct:
    """Stand-in for the function that numpy's pickles begin an array with; the content follows in the state."""

    __slots__ = ()

    def __call__(self, kind: object, shape: object, code: object) -> _Array:
        return _Array()


_ALLOWED: dict[tuple[str, str], object] = {
    ("numpy.core.multiarray", "_reconstruct"): _Reconstruct(),
    ("numpy._core.multiarray", "_reconstruct"): _Reconstruct(),
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is not accepted")
        return _ALLOWED[module, name]


def safe_unpickle(content: bytes, origin: str) -> object:
    """Read a pickle of arrays, lists, dicts, strings and numbers; ``origin`` names it in errors.

    Strings written by Python 2 come back as bytes.

    >>> safe_unpickle(pickle.dumps({b"labels": [3, 5]}), "batch")
    {b'labels': [3, 5]}
    """
    try:
        return _plain(_Unpickler(io.BytesIO(content), encoding="bytes").load())
    except Exception as error:  # malformed content can make the unpickler raise nearly anything
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise InputError(f"{origin} is not a file of plain arrays and lists: {reason}") from error


def _plain(found: object) -> object:
    """``found`` with arrays in place of their stand-ins; anything else that is not plain data is refused."""
    kind = type(found)
    if kind is dict:
        return {_plain(key): _plain(value) for key, value in found.items()}  # type: ignore[attr-defined]
    if kind in (list, tuple):
        return kind(_plain(item) for item in found)  # type: ignore[attr-defined]
    if kind is _Array and found.value is not None:  # type: ignore[attr-defined]
        return found.value  # type: ignore[attr-defined]
    if kind in (bytes, str, int, float, bool, type(None)):
        return found
    raise pickle.UnpicklingError(f"it holds a {kind.__name__}, which is not accepted")

"""Arrays in ``.npz`` files: ``x`` with the examples, ``y`` with the labels, ``classes`` with their names if wanted."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from classgrad._errors import InputError
from classgrad._files import check_archive

_CHANNELS = (1, 3)


def read_npz(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Read every array of the file; arrays of Python objects are refused."""
    try:
        with path.open("rb") as file:
            if zipfile.is_zipfile(file):
                with zipfile.ZipFile(file) as archive:
                    check_archive(archive)
            file.seek(0)
            found = np.load(file, allow_pickle=False)
            if not isinstance(found, np.lib.npyio.NpzFile):
                raise ValueError("it holds a single array, use numpy.savez")
            return {key: found[key] for key in found.files}
    except Exception as error:  # damaged zip files raise nearly anything
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise InputError(f"{path} cannot be read as an .npz file of plain arrays: {reason}") from error


def npz_labels(arrays: dict[str, npt.NDArray[Any]], path: Path) -> npt.NDArray[Any]:
    """Return the array ``y``, or the names that the array ``classes`` gives its numbers."""
    y = _required(arrays, "y", path)
    if y.ndim != 1:
        raise InputError(f"{path}: y must be one label an example, found an array of shape {y.shape}")
    if y.dtype.kind == "S":
        y = _texts(y, path)
    if "classes" not in arrays:
        return y
    names = _texts(arrays["classes"], path).ravel()
    if len(set(names)) < len(names):
        raise InputError(f"{path}: classes must be different names, found {_repeated(names)!r} more than once")
    if y.dtype.kind not in "iu" or not np.array_equal(np.unique(y), np.arange(len(names))):
        raise InputError(
            f"{path}: with classes, y must hold every number of 0..{len(names) - 1}, found {np.unique(y)[:5]}"
        )
    return np.asarray(names[y])


def _texts(values: npt.NDArray[Any], path: Path) -> npt.NDArray[Any]:
    try:
        return np.char.decode(values, "utf-8") if values.dtype.kind == "S" else values.astype(str)
    except UnicodeDecodeError:
        raise InputError(f"{path}: labels and names of classes must be UTF-8") from None


def _repeated(names: npt.NDArray[Any]) -> str:
    found, counts = np.unique(names, return_counts=True)
    return str(found[counts > 1][0])


def npz_examples(arrays: dict[str, npt.NDArray[Any]], path: Path) -> Tensor:
    """Return the array ``x``: uint8 images as (N, channels, height, width), or features as float32.

    Images may come without a channel axis, or with it last, as Pillow and matplotlib have it.
    """
    x = _required(arrays, "x", path)
    if x.ndim == 0 or len(x) == 0:
        raise InputError(f"{path}: x must hold at least one example, found an array of shape {x.shape}")
    if x.ndim in (3, 4):
        return _images(x, path)
    if x.ndim != 2 or x.dtype.kind not in "fiub" or x.shape[1] == 0:
        raise InputError(
            f"{path}: x must be features (examples, features) or uint8 images (examples, height, width[, channels]), "
            f"found shape {x.shape} of {x.dtype}"
        )
    with np.errstate(over="ignore"):  # too large for float32: reported with the infinite ones
        features = torch.from_numpy(x.astype(np.float32))
    check_finite(features, str(path))
    return features


def _images(x: npt.NDArray[Any], path: Path) -> Tensor:
    if x.dtype != np.uint8:
        raise InputError(f"{path}: images must be uint8 (0..255), found {x.dtype}: convert them")
    if x.ndim == 3:
        x = x[:, None]
    elif x.shape[3] in _CHANNELS and x.shape[1] not in _CHANNELS:
        x = x.transpose(0, 3, 1, 2)
    if x.shape[1] not in _CHANNELS or min(x.shape) == 0:
        raise InputError(f"{path}: images must have 1 or 3 channels and at least one pixel, found shape {x.shape}")
    return torch.from_numpy(np.ascontiguousarray(x))


def _required(arrays: dict[str, npt.NDArray[Any]], key: str, path: Path) -> npt.NDArray[Any]:
    if key not in arrays:
        raise InputError(
            f"{path}: no array {key!r}, found {', '.join(arrays) or 'none'}: name the examples x, the labels y"
        )
    return arrays[key]


def check_finite(features: Tensor, origin: str) -> None:
    """Refuse features that are missing (NaN) or infinite, naming the first."""
    bad = ~features.isfinite()
    if bad.any():
        row, column = (int(i) for i in bad.nonzero()[0])
        raise InputError(
            f"{origin}: {int(bad.sum())} values are missing, infinite or too large for single precision, the first in "
            f"row {row + 1}, column {column + 1}: fill them or remove the rows"
        )

"""Folders of images, decoded once into uint8 arrays and kept in the user's cache."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from classgrad._errors import InputError
from classgrad._files import write_atomically
from classgrad._lab import lab_module
from classgrad.data._npz import read_npz
from classgrad.data._places import user_cache

SUFFIXES = frozenset((".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"))
_GREY = frozenset(("1", "L", "LA"))
_COLOUR = frozenset(("P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "LAB"))
_ORIENTATION = 0x0112
_LARGEST = 2**34
Images = npt.NDArray[np.uint8]
Size = tuple[int, int]


def image_files(folder: Path) -> list[Path]:
    """Every image below ``folder`` in the order of the names, hidden files left out."""
    paths = (path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    return sorted(path for path in paths if not any(part.startswith(".") for part in path.relative_to(folder).parts))


def class_folders(folder: Path) -> tuple[list[Path], list[str]]:
    """Every image below the sub-folders of ``folder``, and the name of the sub-folder: its class."""
    classes = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if len(classes) < 2:
        raise InputError(
            f"{folder} must hold one folder of images for each of at least 2 classes, found {len(classes)}"
        )
    paths: list[Path] = []
    labels: list[str] = []
    for place in classes:
        found = image_files(place)
        if not found:
            raise InputError(f"{place} holds no images ({', '.join(sorted(SUFFIXES))}): add some or remove the folder")
        paths += found
        labels += [place.name] * len(found)
    return paths, labels


def read_images(paths: Sequence[Path], folder: Path, *, size: Size | None, channels: int | None = None) -> Images:
    """Read images as (N, channels, height, width), from the cache if none of the files has changed.

    Without ``size`` (height, width) all must have the same one. Without ``channels`` there is one if all of them are
    grey, else three.
    """
    cached = user_cache() / "images" / f"{_key(paths, folder, size, channels)}.npz"
    if cached.is_file():
        with suppress(InputError, KeyError):  # a damaged cache is made again
            found: Images = read_npz(cached)["images"]
            return found
    images = _decode(paths, size, channels)
    with suppress(OSError):  # without a cache it is only slower
        write_atomically(cached, lambda part: _save(part, images))
    return images


def _save(path: Path, images: Images) -> None:
    with path.open("wb") as file:
        np.savez(file, images=images)


def _key(paths: Sequence[Path], folder: Path, size: Size | None, channels: int | None) -> str:
    stats = [(path, path.stat()) for path in paths]
    files = [(str(path.relative_to(folder)), stat.st_size, stat.st_mtime_ns) for path, stat in stats]
    return hashlib.sha256(json.dumps([1, str(folder.resolve()), size, channels, files]).encode()).hexdigest()[:32]


def _decode(paths: Sequence[Path], size: Size | None, channels: int | None) -> Images:
    headers = _headers(paths)
    height, width = size or _common_size(paths, headers)
    depth = channels or (1 if all(mode in _GREY for _, mode in headers) else 3)
    total = len(paths) * depth * height * width
    if total > _LARGEST:
        raise InputError(
            f"{len(paths)} images of {height}x{width} would take {total / 2**30:.0f} GiB: "
            f"give image_size to make them smaller"
        )
    images = np.empty((len(paths), depth, height, width), dtype=np.uint8)

    def fill(position: int) -> str | None:
        try:
            images[position] = _pixels(paths[position], (height, width), depth)
        except Exception as error:
            return _reason(error)
        return None

    with ThreadPoolExecutor() as threads:
        _refuse(paths, list(threads.map(fill, range(len(paths)))))
    return images


def _headers(paths: Sequence[Path]) -> list[tuple[Size, str]]:
    """Size and mode of every image, read without decoding them."""
    pil = lab_module("PIL.Image", "reading images")
    headers: list[tuple[Size, str]] = []
    reasons: list[str | None] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error", pil.DecompressionBombWarning)
        for path in paths:
            reason = None
            try:
                headers.append(_header(pil, path))
            except Exception as error:  # Pillow's readers raise nearly anything on damaged files
                reason = _reason(error)
            reasons.append(reason)
    _refuse(paths, reasons)
    return headers


def _header(pil: Any, path: Path) -> tuple[Size, str]:
    with pil.open(path) as image:
        if image.mode not in _GREY | _COLOUR:
            raise ValueError(f"images of mode {image.mode} are not read, convert it to 8 bits a channel")
        size = (image.height, image.width)
        return size[::-1] if _orientation(image) >= 5 else size, image.mode


def _orientation(image: Any) -> int:
    """Return how the camera was held: 1 for upright, 5 and above for on its side."""
    marked = "exif" in image.info or image.format == "TIFF"  # to ask further would decode every PNG
    return int(image.getexif().get(_ORIENTATION, 1)) if marked else 1


def _pixels(path: Path, size: Size, channels: int) -> Images:
    """One image as (channels, height, width), upright."""
    pil = lab_module("PIL.Image", "reading images")
    with pil.open(path) as image:
        turn = lab_module("PIL.ImageOps", "reading images").exif_transpose
        upright = turn(image) if _orientation(image) > 1 else image
        plain = upright.convert("L" if channels == 1 else "RGB")
        if (plain.height, plain.width) != size:
            plain = plain.resize((size[1], size[0]), pil.Resampling.BICUBIC, reducing_gap=3.0)
        return np.asarray(plain, dtype=np.uint8).reshape(*size, channels).transpose(2, 0, 1)


def _common_size(paths: Sequence[Path], headers: Sequence[tuple[Size, str]]) -> Size:
    sizes = Counter(size for size, _ in headers)
    (usual, often), *others = sizes.most_common()
    if others:
        odd = next(path for path, (size, _) in zip(paths, headers, strict=True) if size != usual)
        raise InputError(
            f"images have {len(sizes)} sizes, {often} of {len(paths)} are {usual[0]}x{usual[1]} but not {odd}: "
            f"give image_size (height, width) to bring all to one"
        )
    return usual


def _reason(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


def _refuse(paths: Sequence[Path], reasons: Sequence[str | None]) -> None:
    failed = [(path, reason) for path, reason in zip(paths, reasons, strict=True) if reason is not None]
    if failed:
        path, reason = failed[0]
        which = (
            f"{len(failed)} images cannot be read, the first is {path}" if len(failed) > 1 else f"{path} cannot be read"
        )
        raise InputError(f"{which} ({reason}): replace or remove what is damaged")

"""One's own data: arrays, tables and image folders, with labels to learn from or without to predict."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from classgrad._errors import InputError
from classgrad.data._checks import whole
from classgrad.data._dataset import Dataset, Split
from classgrad.data._images import SUFFIXES, Size, class_folders, image_files, read_images
from classgrad.data._labels import Labels, class_labels, stratified
from classgrad.data._normalization import moments
from classgrad.data._npz import npz_examples, npz_labels, read_npz
from classgrad.data._options import Build
from classgrad.data._preprocessing import Column, Preprocessing
from classgrad.data._tables import (
    DELIMITERS,
    PARQUET,
    check_columns,
    encode,
    feature_columns,
    read_table,
    target_values,
)

Positions = tuple[Labels, Labels, Labels]
TABLES = (*DELIMITERS, *PARQUET)
_KINDS = ".npz, .csv, .tsv, .parquet or a folder of images"


def load_npz(path: Path, *, validation: float = 0.15, test: float = 0.15, seed: int = 0) -> Dataset:
    """Load the arrays ``x`` and ``y`` of an .npz file."""
    arrays = read_npz(path)
    x, (y, classes) = npz_examples(arrays, path), class_labels(npz_labels(arrays, path), str(path))
    if len(x) != len(y):
        raise InputError(f"{path}: x and y must be of one length, found {len(x)} and {len(y)}")
    positions = stratified(y, classes, validation=validation, test=test, seed=seed)
    return _dataset(path.stem, x, y, positions, classes, source=_digest(x))


def load_table(
    path: Path,
    *,
    target: str,
    drop: Sequence[str] = (),
    delimiter: str | None = None,
    validation: float = 0.15,
    test: float = 0.15,
    seed: int = 0,
) -> Dataset:
    """Load a CSV or Parquet file whose column ``target`` names the classes, without the columns ``drop``."""
    target = str(target)  # the name of a column may look like a number
    left_out = [str(name) for name in drop] if isinstance(drop, (list, tuple)) else [str(drop)]
    table = read_table(path, delimiter=delimiter)
    check_columns(table, left_out, path)
    y, classes = class_labels(target_values(table, target, path), f"{path}, column {target!r}")
    positions = stratified(y, classes, validation=validation, test=test, seed=seed)
    names = [name for name in table.column_names if name != target and name not in left_out]
    columns = feature_columns(table, names, positions[0], path)
    x = encode(table, columns, path)
    return _dataset(path.stem, x, y, positions, classes, source=_digest(x, names), columns=columns)


def load_images(
    path: Path,
    *,
    image_size: int | Sequence[int] | None = None,
    validation: float = 0.15,
    test: float = 0.15,
    seed: int = 0,
) -> Dataset:
    """Load a folder of one folder of images a class; ``image_size`` is (height, width) or one number for both."""
    size = None if image_size is None else _image_size(image_size)
    paths, labels = class_folders(path)
    y, classes = class_labels(np.array(labels), str(path))
    positions = stratified(y, classes, validation=validation, test=test, seed=seed)
    x = torch.from_numpy(read_images(paths, path, size=size))
    return _dataset(path.resolve().name, x, y, positions, classes, source=_digest(x), resize=size is not None)


def _image_size(given: int | Sequence[int]) -> Size:
    sides = list(given) if isinstance(given, Sequence) else [given, given]
    if len(sides) != 2:
        raise InputError(f"image_size must be one whole number or (height, width), found {given!r}")
    return whole("image_size", sides[0], least=1), whole("image_size", sides[1], least=1)


def _digest(x: Tensor, names: Sequence[str] = ()) -> str:
    digest = hashlib.sha256(json.dumps([str(x.dtype), list(x.shape), list(names)]).encode())
    digest.update(x.contiguous().numpy().data)
    return digest.hexdigest()


def _dataset(
    name: str,
    x: Tensor,
    y: Labels,
    positions: Positions,
    classes: tuple[str, ...],
    *,
    source: str,
    columns: tuple[Column, ...] = (),
    resize: bool = False,
) -> Dataset:
    labels = torch.from_numpy(y)
    train, validation, test = (
        Split(x[indices], labels[indices], indices) for indices in map(torch.from_numpy, positions)
    )
    mean, std = moments(train.x)
    preprocessing = Preprocessing(classes, tuple(x.shape[1:]), mean, std, columns, resize)
    return Dataset(name, None, train, validation, test, _with_plain_categories(preprocessing), source)


def _with_plain_categories(preprocessing: Preprocessing) -> Preprocessing:
    """Leave the 0 and 1 of categories as they are: scaled, a rare category would outweigh everything."""
    plain = [column.categories is not None for column in preprocessing.columns for _ in column.features]
    if not plain:
        return preprocessing
    mean = tuple(0.0 if skip else m for m, skip in zip(preprocessing.mean, plain, strict=True))
    std = tuple(1.0 if skip else s for s, skip in zip(preprocessing.std, plain, strict=True))
    return replace(preprocessing, mean=mean, std=std)


def own_loader(path: Path) -> Build:
    """Return the function that loads what is at ``path``."""
    if path.is_dir():
        return load_images
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return load_npz
    if suffix in TABLES:
        return load_table
    raise InputError(f"{path} is of an unknown kind: give {_KINDS}")


@dataclass(frozen=True, eq=False)
class Examples:
    """New data without labels: raw examples as in :class:`Split`, and the file or row each came from."""

    x: Tensor
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)


def load_new(path: str | Path, preprocessing: Preprocessing, *, delimiter: str | None = None) -> Examples:
    """Read new data for a trained model: a table, an .npz, an image or a folder of images, whatever it was trained on.

    Columns the model does not use, labels and the names of sub-folders are ignored. A category that training did not
    have becomes zeros. Feed ``preprocessing.normalize(examples.x)`` to the model.
    """
    place = Path(path).expanduser()
    if not place.exists():
        raise InputError(f"{place} does not exist")
    suffix = place.suffix.lower()
    if preprocessing.columns and suffix in TABLES:
        return _new_rows(place, preprocessing, delimiter)
    if preprocessing.images and (place.is_dir() or suffix in SUFFIXES):
        return _new_images(place, preprocessing)
    if suffix == ".npz" and not preprocessing.columns:
        return _new_arrays(place, preprocessing)
    expected = (
        f"a table ({', '.join(TABLES)})"
        if preprocessing.columns
        else "an image, a folder of images or an .npz"
        if preprocessing.images
        else "an .npz"
    )
    raise InputError(f"{place} does not fit the model, which needs {expected}")


def _new_rows(path: Path, preprocessing: Preprocessing, delimiter: str | None) -> Examples:
    texts = [column.name for column in preprocessing.columns if column.categories is not None]
    x = encode(read_table(path, delimiter=delimiter, texts=texts), preprocessing.columns, path)
    return _numbered(x)


def _new_arrays(path: Path, preprocessing: Preprocessing) -> Examples:
    x = npz_examples(read_npz(path), path)
    if x.shape[1:] != preprocessing.shape:
        raise InputError(f"{path}: the model needs examples of shape {preprocessing.shape}, found {tuple(x.shape[1:])}")
    return _numbered(x)


def _new_images(path: Path, preprocessing: Preprocessing) -> Examples:
    folder = path if path.is_dir() else path.parent
    paths = image_files(path) if path.is_dir() else [path]
    if not paths:
        raise InputError(f"{path} holds no images ({', '.join(sorted(SUFFIXES))})")
    channels, height, width = preprocessing.shape
    images = read_images(paths, folder, size=(height, width) if preprocessing.resize else None, channels=channels)
    if images.shape[1:] != preprocessing.shape:
        raise InputError(
            f"{path}: the model needs images of {height}x{width}, "
            f"found {images.shape[2]}x{images.shape[3]}: resize them"
        )
    return Examples(torch.from_numpy(images), tuple(str(path.relative_to(folder)) for path in paths))


def _numbered(x: Tensor) -> Examples:
    return Examples(x, tuple(str(row) for row in range(1, len(x) + 1)))

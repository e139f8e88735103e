"""What a trained model must know to use new data, as plain JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TypeVar

import torch
from torch import Tensor

from classgrad._errors import InputError
from classgrad.data._normalization import constants, scale_and_shift

_VERSION = 1
_T = TypeVar("_T")


@dataclass(frozen=True)
class Column:
    """A column of a table: numbers, or texts of which the training split held ``categories``."""

    name: str
    categories: tuple[str, ...] | None = None

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features the column becomes, itself, or one a category."""
        if self.categories is None:
            return (self.name,)
        return tuple(f"{self.name}={category}" for category in self.categories)


@dataclass(frozen=True)
class Preprocessing:
    """From raw examples to what the model sees: the shape, the columns of a table, mean and std, the class names.

    ``shape`` is (channels, height, width) of uint8 images or (features,). ``resize`` says that images of other sizes
    are brought to ``shape``. ``columns`` is empty unless the data is a table.

    >>> p = Preprocessing(classes=("no", "yes"), shape=(1,), mean=(3.0,), std=(2.0,), columns=(Column("age"),))
    >>> p.normalize(torch.tensor([[3.0], [7.0]])).tolist()
    [[0.0], [2.0]]
    >>> Preprocessing.from_json(p.to_json()) == p
    True
    """

    classes: tuple[str, ...]
    shape: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    columns: tuple[Column, ...] = ()
    resize: bool = False

    @property
    def images(self) -> bool:
        """Whether the examples are images (uint8) and not features (float32)."""
        return len(self.shape) == 3

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features of a table; empty for images and arrays."""
        return tuple(name for column in self.columns for name in column.features)

    def normalize(self, x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return a normalized floating copy of raw examples ``x``, on their device."""
        if x.shape[1:] != self.shape:
            raise InputError(f"x must hold examples of shape {self.shape}, found {tuple(x.shape[1:])}")
        mean, std = constants(self.mean, self.std, images=self.images, dtype=dtype, device=x.device)
        return scale_and_shift(x.to(dtype, copy=True), mean, std)

    def to_json(self) -> str:
        """Write the whole as one line of JSON."""
        return json.dumps({"version": _VERSION, **asdict(self)}, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Preprocessing:
        """Read what :meth:`to_json` wrote; anything else is refused."""
        try:
            found = _parsed(json.loads(text))
            _check(found)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            reason = str(error).partition("\n")[0]
            raise InputError(f"the preprocessing stored with the model cannot be read: {reason}") from error
        return found


def _parsed(fields: Mapping[str, object]) -> Preprocessing:
    if fields["version"] != _VERSION:
        raise ValueError(f"version {_VERSION} is understood, found {fields['version']!r}")
    return Preprocessing(
        classes=_tuple(fields["classes"], str),
        shape=_tuple(fields["shape"], int),
        mean=_tuple(fields["mean"], float),
        std=_tuple(fields["std"], float),
        columns=tuple(_column(column) for column in _tuple(fields["columns"], dict)),
        resize=fields["resize"] is True,
    )


def _tuple(values: object, of: type[_T]) -> tuple[_T, ...]:
    if not isinstance(values, list) or not all(isinstance(value, of) for value in values):
        raise TypeError(f"a list of {of.__name__} was expected, found {values!r:.60}")
    return tuple(values)


def _column(fields: dict[str, object]) -> Column:
    (name,) = _tuple([fields["name"]], str)
    categories = fields["categories"]
    return Column(name, None if categories is None else _tuple(categories, str))


def _check(found: Preprocessing) -> None:
    rules = {
        "shape must be (channels, height, width) or (features,)": len(found.shape) in (1, 3) and min(found.shape) > 0,
        "mean and std must have one entry a channel or feature": (
            len(found.mean) == len(found.std) == next(iter(found.shape), 0)
        ),
        "mean must be finite": all(map(math.isfinite, found.mean)),
        "std must be finite and above 0": all(math.isfinite(s) and s > 0 for s in found.std),
        "classes must be different names": 0 < len(found.classes) == len(set(found.classes)),
        "the columns must give the features": not found.columns or (len(found.features),) == found.shape,
    }
    for rule, kept in rules.items():
        if not kept:
            raise ValueError(rule)

"""Tables in CSV and Parquet files: columns of numbers and of categories, and a column with the classes."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from classgrad._errors import InputError
from classgrad._lab import lab_module
from classgrad.data._npz import check_finite
from classgrad.data._preprocessing import Column

DELIMITERS = {".csv": ",", ".tsv": "\t"}
PARQUET = (".parquet", ".pq")
_MOST_CATEGORIES = 100
_PURPOSE = "reading tables"


def read_table(path: Path, *, delimiter: str | None = None, texts: Sequence[str] = ()) -> Any:
    """Read a pyarrow table of at least one row; the columns ``texts`` are never taken for numbers."""
    pyarrow = lab_module("pyarrow", _PURPOSE)
    if delimiter is not None and (not isinstance(delimiter, str) or len(delimiter) != 1):
        raise InputError(f"delimiter must be one character, found {delimiter!r}")
    try:
        table = _parquet(path) if path.suffix.lower() in PARQUET else _csv(path, delimiter, texts)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"{path} cannot be read as a table: {reason}") from error
    twice = sorted({name for name in table.column_names if table.column_names.count(name) > 1})
    if twice:
        raise InputError(f"{path}: two columns are called {twice[0]!r}: give each its own name")
    if table.num_rows == 0:
        raise InputError(f"{path}: the table has no rows")
    return table


def _parquet(path: Path) -> Any:
    return lab_module("pyarrow.parquet", _PURPOSE).read_table(path)


def _csv(path: Path, delimiter: str | None, texts: Sequence[str]) -> Any:
    csv, pyarrow = lab_module("pyarrow.csv", _PURPOSE), lab_module("pyarrow", _PURPOSE)
    return csv.read_csv(
        path,
        parse_options=csv.ParseOptions(
            delimiter=delimiter or DELIMITERS.get(path.suffix.lower(), ","), newlines_in_values=True
        ),
        convert_options=csv.ConvertOptions(
            strings_can_be_null=True, column_types={name: pyarrow.string() for name in texts}
        ),
    )


def target_values(table: Any, target: str, path: Path) -> npt.NDArray[Any]:
    """Return the column with the classes, as texts or numbers."""
    check_columns(table, [target], path)
    types = lab_module("pyarrow", _PURPOSE).types
    column = table.column(target)
    _check_complete(table, [target], path)
    if types.is_dictionary(column.type) or types.is_large_string(column.type):
        column = column.cast("string")
    values = np.asarray(column.to_numpy())
    return values.astype(str) if types.is_string(column.type) else values


def feature_columns(table: Any, names: Sequence[str], train: npt.NDArray[np.int64], path: Path) -> tuple[Column, ...]:
    """Kind of each column, and the categories that its training rows hold."""
    if not names:
        raise InputError(f"{path}: no column is left for the features")
    _check_complete(table, names, path)
    return tuple(_column(table.column(name), name, train, path) for name in names)


def _column(column: Any, name: str, train: npt.NDArray[np.int64], path: Path) -> Column:
    if _is_number(column.type):
        return Column(name)
    if not _is_text(column.type):
        raise InputError(
            f"{path}: column {name!r} holds {column.type}, neither numbers nor texts: "
            f"convert it, or leave it out with drop"
        )
    categories = sorted(column.cast("string").take(train).unique().to_pylist())
    if len(categories) > _MOST_CATEGORIES:
        raise InputError(
            f"{path}: column {name!r} holds {len(categories)} different texts, at most {_MOST_CATEGORIES} can be "
            f"categories: leave it out with drop, or group its values"
        )
    return Column(name, tuple(categories))


def encode(table: Any, columns: Sequence[Column], path: Path) -> Tensor:
    """Features of every row: a number as it is, a category as one feature each, an unknown category as zeros."""
    names = [column.name for column in columns]
    check_columns(table, names, path)
    _check_complete(table, names, path)
    blocks = [_encoded(table.column(column.name), column, path) for column in columns]
    features = torch.from_numpy(np.concatenate(blocks, axis=1))
    check_finite(features, str(path))
    return features


def _encoded(values: Any, column: Column, path: Path) -> npt.NDArray[np.float32]:
    pyarrow, compute = lab_module("pyarrow", _PURPOSE), lab_module("pyarrow.compute", _PURPOSE)
    if column.categories is None:
        if not _is_number(values.type):
            raise InputError(f"{path}: column {column.name!r} must hold numbers, found {values.type}")
        if not pyarrow.types.is_boolean(values.type):
            values = values.cast("float64", safe=False)
        with np.errstate(over="ignore"):  # too large for float32: reported with the infinite ones
            return np.asarray(values.to_numpy().astype(np.float32)[:, None])
    positions = compute.index_in(values.cast("string"), value_set=pyarrow.array(column.categories, "string"))
    found = np.asarray(positions.fill_null(-1).to_numpy())
    return np.asarray(found[:, None] == np.arange(len(column.categories)), dtype=np.float32)


def _is_number(kind: Any) -> bool:
    types = lab_module("pyarrow", _PURPOSE).types
    return any((types.is_integer(kind), types.is_floating(kind), types.is_boolean(kind), types.is_decimal(kind)))


def _is_text(kind: Any) -> bool:
    types = lab_module("pyarrow", _PURPOSE).types
    if types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return bool(types.is_string(kind) or types.is_large_string(kind))


def check_columns(table: Any, names: Sequence[str], path: Path) -> None:
    """Refuse a table that lacks a column, naming what it has."""
    for name in names:
        if name not in table.column_names:
            near = difflib.get_close_matches(name, table.column_names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(table.column_names[:10])}"
            raise InputError(f"{path}: no column {name!r}: {hint}")


def _check_complete(table: Any, names: Sequence[str], path: Path) -> None:
    compute = lab_module("pyarrow.compute", _PURPOSE)
    gaps = []
    for name in names:
        missing = np.flatnonzero(compute.is_null(table.column(name), nan_is_null=True).to_numpy())
        if len(missing):
            gaps.append(f"{name!r} {len(missing)} (first in row {missing[0] + 1})")
    if gaps:
        more = f" and {len(gaps) - 5} more columns" if len(gaps) > 5 else ""
        raise InputError(
            f"{path}: missing values in {', '.join(gaps[:5])}{more}: fill them, remove the rows or drop the column"
        )

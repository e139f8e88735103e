"""The arguments that name a dataset, for every subcommand that takes one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from classgrad._errors import InputError
from classgrad.data import Dataset, load

Source = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="Name of a dataset ('classgrad data list'), an .npz, .csv or .parquet file, or a folder with one folder "
        "of images for each class.",
        show_default=False,
    ),
]
Protocol = Annotated[
    str, typer.Option(metavar="paper|authors", help="For the paper's datasets: as its text says, or as its code does.")
]
DataDir = Annotated[
    Path | None,
    typer.Option(help="Folder with the CIFAR files; else CLASSGRAD_DATA, else the user's cache.", show_default=False),
]
Target = Annotated[str | None, typer.Option(help="Column of a table that names the classes.", show_default=False)]
DataOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        "-o",
        metavar="NAME=VALUE",
        help="Option of the dataset, such as imbalance=50 or image_size=32; may be repeated. VALUE is JSON or text.",
        show_default=False,
    ),
]


def load_source(
    source: str,
    *,
    protocol: str = "paper",
    data_dir: Path | None = None,
    target: str | None = None,
    options: Sequence[str] | None = None,
    progress: bool = True,
) -> Dataset:
    """Load what the arguments name."""
    named = data_options(target, options)
    return load(source, protocol=protocol, data_dir=data_dir, progress=progress, **named)


def data_options(target: str | None, options: Sequence[str] | None) -> dict[str, Any]:
    """Return the options of a dataset by name, ``--target`` among them."""
    return {**({} if target is None else {"target": target}), **pairs("--option", options)}


def pairs(flag: str, given: Sequence[str] | None) -> dict[str, Any]:
    """Read the NAME=VALUE arguments of a flag; a value is JSON or else text."""
    named: dict[str, Any] = {}
    for pair in given or ():
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise InputError(f"{flag} must be NAME=VALUE, found {pair!r}")
        named[name] = _value(value)
    return named


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def file_name(data: str) -> str:
    """Name the folder of a data set: the recipe's name, or that of one's own file without its ending."""
    return Path(data).stem or "data"

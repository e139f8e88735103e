"""One function that loads any dataset."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

from classgrad._errors import InputError
from classgrad.data._checks import choice
from classgrad.data._dataset import Dataset
from classgrad.data._options import build_with
from classgrad.data._own import own_loader
from classgrad.data._places import Where
from classgrad.data._recipes import PROTOCOLS, RECIPES


def load(
    source: str | Path,
    *,
    protocol: str = "paper",
    data_dir: str | Path | None = None,
    progress: bool = True,
    **options: Any,
) -> Dataset:
    """Load a dataset by the name of its recipe, or one's own data by its path.

    Args:
        source: a name (see :func:`recipes`), an .npz, .csv, .tsv or .parquet file, or a folder with one folder of
            images for each class. A name wins over a path; write ``./digits`` for a folder called digits.
        protocol: for the paper's datasets, ``"paper"`` as its text says or ``"authors"`` as the released code does.
        data_dir: where CIFAR is looked for first, and downloaded to; then ``CLASSGRAD_DATA`` and the user's cache.
        progress: whether a download may draw a progress bar.
        options: what the recipe or kind of file takes (docs/data.md lists all of it), among others ``imbalance`` and
            ``profile`` for the long-tailed ones, ``counts`` for ``cifar10``, ``cifar100`` and ``digits``,
            ``composition`` and ``batch_size`` for the authors' protocol, ``target`` for tables, and ``validation``,
            ``test`` and ``seed`` for the split of one's own data.

    >>> data = load("digits-bi20")
    >>> data.classes, data.counts["train"], data.rho
    (('even', 'odd'), (600, 30), 20.0)
    """
    choice("protocol", protocol, PROTOCOLS)
    name = str(source)
    if name in RECIPES:
        where = Where(None if data_dir is None else Path(data_dir).expanduser(), progress)
        return build_with(RECIPES[name].builder(name, protocol), name, where, options)
    path = Path(source).expanduser()
    if not path.exists():
        near = difflib.get_close_matches(name, RECIPES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"the names are {', '.join(RECIPES)}"
        raise InputError(f"{name!r} is neither the name of a dataset nor a file or folder: {hint}")
    if protocol != "paper":
        raise InputError(f"protocol={protocol!r} is for the paper's datasets, not for one's own data")
    return build_with(own_loader(path), name, path, options)

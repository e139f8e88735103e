from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from classgrad import InputError
from classgrad.data import load


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("bi7", {}, r"^'bi7' is neither the name of a dataset nor a file or folder: did you mean 'bi7[ab]'\?$"),
        ("zzz", {}, r"the names are bi7a, .*gaussian-bi60$"),
        ("digits", {"protocol": "both"}, r"protocol must be one of paper, authors, found 'both'"),
        ("digits", {"protocol": "authors"}, r"protocol='authors' is for the paper's datasets, digits is none"),
        ("digits-bi20", {"imbalance": 3}, r"digits-bi20 has no option 'imbalance': it takes none"),
    ],
)
def test_what_cannot_be_loaded(source: str, options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(source, **options)


def test_a_name_wins_over_a_path(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("digits", x=np.eye(12), y=np.arange(12) % 2)
    (tmp_path / "digits.npz").rename("digits")
    assert load("digits").name == "digits"
    assert len(load("digits").classes) == 10
    with pytest.raises(InputError, match="digits is of an unknown kind: give"):
        load("./digits")


def test_the_protocol_is_not_for_ones_own_data(tmp_path) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, x=np.eye(12), y=np.arange(12) % 2)
    with pytest.raises(InputError, match="not for one's own data"):
        load(path, protocol="authors")
    with pytest.raises(InputError, match=r"mine.npz has no option 'target': it takes validation, test, seed"):
        load(path, target="y")


def test_only_torch_and_numpy_are_imported() -> None:
    lab = ["sklearn", "pyarrow", "PIL", "pooch", "rich", "typer", "scipy", "pandas", "matplotlib"]
    code = f"import sys, classgrad.data; print([m for m in {lab} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize(
    ("module", "source", "message"),
    [("sklearn.datasets", "digits", r"^the digits data needs the package sklearn.*: pip install 'classgrad\[lab\]'$")],
)
def test_without_the_extra(module: str, source: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match=message):
        load(source)

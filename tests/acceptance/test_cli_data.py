"""``classgrad data`` as a user types it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from classgrad.cli import main
from classgrad.data import load, recipes

DOCS = Path(__file__).parents[2] / "docs" / "data.md"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_list(capsys: pytest.CaptureFixture) -> None:
    assert main(["data", "list"]) == 0
    out = capsys.readouterr().out
    for name, recipe in recipes().items():
        assert f"│ {name} " in out
        assert recipe.summary in out
    assert main(["data", "list", "--json"]) == 0
    listed = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert listed["bi60"]["protocols"] == ["paper", "authors"]
    assert listed["cifar10-lt"]["options"] == {"imbalance": 100, "profile": "exp", "validation_per_class": 0}


def test_show(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    sheet = tmp_path / "sheets" / "digits.png"
    assert main(["data", "show", "digits-bi20", "--out", str(sheet)]) == 0
    out = capsys.readouterr().out
    data = load("digits-bi20")
    for line in (
        "│     0 │ even  │   600 │        135 │  135 │",
        "│     1 │ odd   │    30 │        135 │  135 │",
        "imbalance ρ     20",
        "images of 8 x 8 pixels, 1 channel",
        f"mean            {data.mean[0]:.4f}",
        f"std             {data.std[0]:.4f}",
        f"fingerprint     {data.fingerprint}",
        f"contact sheet   {sheet}",
    ):
        assert line in out
    with Image.open(sheet) as image:
        assert image.format == "PNG"
        assert min(image.size) > 50


def test_show_as_json_and_quietly(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["data", "show", "digits-mul10", "--json", "--out", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    data = load("digits-mul10")
    assert found["classes"] == list(data.classes)
    assert found["counts"] == {split: list(counts) for split, counts in data.counts.items()}
    assert (found["rho"], found["mean"], found["std"]) == (20.0, list(data.mean), list(data.std))
    assert (found["fingerprint"], found["protocol"], found["shape"]) == (data.fingerprint, None, [1, 8, 8])
    assert found["contact_sheet"] == str(tmp_path / "digits-mul10.png")
    assert main(["data", "show", "digits-mul10", "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


def test_show_ones_own_data(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    table = tmp_path / "people.csv"
    table.write_text("age,city,churn\n" + "".join(f"{i},{'AB'[i % 2]},{'yn'[i % 4 == 0]}\n" for i in range(40)))
    assert main(["data", "show", str(table), "--target", "churn", "-o", "test=0.25", "-o", "seed=3"]) == 0
    out = capsys.readouterr().out
    assert "3 features: age, city=A, city=B" in out
    assert "│ all   │" in out
    wide = tmp_path / "wide.npz"
    np.savez(wide, x=np.random.default_rng(0).normal(size=(40, 30)), y=np.arange(40) % 2)
    assert main(["data", "show", str(wide)]) == 0
    assert "... (30 in all)" in capsys.readouterr().out
    folder = tmp_path / "pets"
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for i in range(4):
            Image.new("RGB", (5, 4), (i, 0, 0)).save(folder / name / f"{i}.png")
    assert main(["data", "show", str(folder), "--out", str(tmp_path / "pets.png")]) == 0
    assert "images of 4 x 5 pixels, 3 channels" in capsys.readouterr().out
    assert (tmp_path / "pets.png").is_file()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["show", "digit"], "'digit' is neither the name of a dataset nor a file or folder: did you mean 'digits'?"),
        (["show", "digits", "--protocol", "both"], "protocol must be one of paper, authors, found 'both'"),
        (["show", "digits", "-o", "counts=3"], "counts must be a dict of at least 2 classes and their counts, found 3"),
        (["show", "digits", "--target", "y"], "digits has no option 'target': it takes counts"),
        (["show", "gaussian", "--out", "x.png"], "gaussian has no images to show: its examples are 20 features"),
        (["table", "bi8"], "'bi8' is not the name of a dataset: the names are bi7a, "),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], line: str, capsys: pytest.CaptureFixture) -> None:
    assert main(["data", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"classgrad: {line}")
    assert err.count("\n") == 1


def test_a_sheet_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    assert main(["data", "show", "digits", "--out", str(tmp_path / "file" / "x.png")]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"classgrad: {tmp_path / 'file'}")
    assert err.count("\n") == 1


EMBEDDED = ["digits-bi20", "digits-mul10", "digits", "gaussian", "gaussian-bi60"]


def table_of(names: list[str], capsys: pytest.CaptureFixture) -> list[str]:
    assert main(["data", "table", *names]) == 0
    return capsys.readouterr().out.splitlines()


def test_the_table_in_the_documentation(capsys: pytest.CaptureFixture) -> None:
    lines = table_of(EMBEDDED, capsys)
    assert len(lines) == 2 + len(EMBEDDED)
    documented = DOCS.read_text().splitlines()
    assert set(lines) <= set(documented)
    assert main(["data", "table", "gaussian", "--json"]) == 0
    assert [entry["name"] for entry in json.loads(capsys.readouterr().out)] == ["gaussian"]


@pytest.mark.cifar
@pytest.mark.skipif("CLASSGRAD_DATA" not in os.environ, reason="CLASSGRAD_DATA names no folder with CIFAR")
def test_the_whole_table_in_the_documentation(capsys: pytest.CaptureFixture) -> None:
    assert "\n".join(table_of([], capsys)) in DOCS.read_text()


def test_the_installed_command() -> None:
    command = Path(sys.executable).with_name("classgrad")
    done = subprocess.run([command, "data", "show", "nothing"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("classgrad: 'nothing' is neither")
    assert "Traceback" not in done.stderr

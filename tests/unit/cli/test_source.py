from __future__ import annotations

from pathlib import Path

import pytest

from classgrad import InputError
from classgrad.cli._source import load_source


def test_options_are_json_or_text(tmp_path: Path) -> None:
    data = load_source("gaussian", options=["classes=3", "noise=[1, 2, 0.5]", "overlap=0.1", "test_per_class=9"])
    assert data.counts["test"] == (9, 9, 9)
    assert load_source("digits", options=['counts={"8": 50, "3": 5}']).counts["train"] == (50, 5)
    path = tmp_path / "x.csv"
    path.write_text("a;b\n" + "1;x\n2;y\n" * 10)
    assert load_source(str(path), target="b", options=["delimiter=;"]).classes == ("x", "y")


@pytest.mark.parametrize("option", ["classes", "=3", ""])
def test_an_option_that_is_none(option: str) -> None:
    with pytest.raises(InputError, match="--option must be NAME=VALUE, found"):
        load_source("gaussian", options=[option])

import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs" / "models.md"


def test_the_table_of_the_docs_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_module("classgrad.models", run_name="__main__")
    printed = capsys.readouterr().out
    assert "| resnet18 | authors | 11,182,338 | 11,186,442 | 11,232,612 |\n" in printed
    assert DOCS.read_text(encoding="utf-8").endswith(printed)

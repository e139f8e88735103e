from __future__ import annotations

import json
import sys

import pytest

from classgrad.cli._console import Output


def fill(output: Output) -> None:
    output.say("a line [with] brackets")
    output.table(["name", "n"], [("bold [b]text[/b]", "1,000"), ("x", ""), ("y", 2.5)], title="things")
    output.document({"x": [1.5, float("nan"), (float("inf"), "é")], 3: None})


def test_text(capsys: pytest.CaptureFixture) -> None:
    fill(Output())
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith("a line [with] brackets\nthings")
    assert "│ bold [b]text[/b] │ 1,000 │" in out
    assert "│ y                │   2.5 │" in out  # numbers to the right
    assert "{" not in out


def test_names_cannot_steer_the_terminal(capsys: pytest.CaptureFixture) -> None:
    Output().say("a\x1b[31mb\x07")
    Output().table(["na\x1bme"], [("\x9bcell",)], title="[/b] a [draft]")
    out = capsys.readouterr().out
    assert "a\\x1b[31mb\\x07" in out
    assert "na\\x1bme" in out
    assert "\\x9bcell" in out
    assert "[/b] a" in out
    assert "[draft]" in out
    assert "\x1b" not in out


def test_json_is_one_document(capsys: pytest.CaptureFixture) -> None:
    fill(Output(json=True))
    assert json.loads(capsys.readouterr().out) == {"x": [1.5, None, [None, "é"]], "3": None}


def test_quiet(capsys: pytest.CaptureFixture) -> None:
    fill(Output(quiet=True))
    assert capsys.readouterr() == ("", "")


def test_a_pipe_is_never_folded_but_columns_are_respected(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    Output().table(["long"], [("word " * 80,)])
    assert max(map(len, capsys.readouterr().out.splitlines())) > 400
    monkeypatch.setenv("COLUMNS", "60")
    Output().table(["long"], [("word " * 80,)])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 60


@pytest.mark.parametrize(
    ("output", "terminal", "shown"),
    [
        (Output(), True, True),
        (Output(), False, False),
        (Output(quiet=True), True, False),
        (Output(json=True), True, False),
    ],
)
def test_progress_is_for_people(
    output: Output, terminal: bool, shown: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    else:
        monkeypatch.delenv("FORCE_COLOR", raising=False)
    with output.progress() as progress:
        task = progress.add_task("training", total=2)
        progress.update(task, advance=2)
    out, err = capsys.readouterr()
    assert out == ""
    assert ("training" in err) == shown

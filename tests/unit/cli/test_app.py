from __future__ import annotations

import runpy
import sys

import pytest
import typer

import classgrad
from classgrad.cli import _app, main


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch):
    """Make ``classgrad data list`` raise."""

    def arrange(error: BaseException) -> None:
        def raising(*args: object) -> None:
            raise error

        monkeypatch.setattr("classgrad.cli._data.recipes", raising)

    return arrange


def test_the_version(capsys: pytest.CaptureFixture) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"classgrad {classgrad.__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["--help"], ["data", "--help"], ["data", "show", "--help"]])
def test_help(arguments: list[str], capsys: pytest.CaptureFixture) -> None:
    assert main(arguments) == 0
    captured = capsys.readouterr()
    assert "Usage: classgrad" in captured.out
    assert captured.err == ""


def test_a_group_alone_prints_its_help(capsys: pytest.CaptureFixture) -> None:
    assert main(["data"]) == 2
    captured = capsys.readouterr()
    assert "Usage: classgrad data" in captured.out
    assert captured.err == ""


def test_the_arguments_of_the_process(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(sys, "argv", ["classgrad", "--version"])
    assert main() == 0
    assert capsys.readouterr().out.startswith("classgrad ")


@pytest.mark.parametrize(("argument", "code"), [("--version", 0), ("nonsense", 2)])
def test_the_package_is_the_command(argument: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["classgrad", argument])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("classgrad", run_name="__main__")
    assert ended.value.code == code


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["nonsense"], "classgrad: No such command 'nonsense'. (see classgrad --help)\n"),
        (["data", "show"], "classgrad: Missing argument 'DATA'. (see classgrad data show --help)\n"),
        (["data", "list", "--colour"], "classgrad: No such option: --colour (see classgrad data list --help)\n"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(arguments: list[str], line: str, capsys: pytest.CaptureFixture) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr() == ("", line)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (classgrad.InputError("lr must be above 0,\n found -1"), "classgrad: lr must be above 0, found -1\n"),
        (PermissionError(13, "Permission denied", "/root/x"), "classgrad: /root/x: Permission denied\n"),
        (OSError("no space"), "classgrad: no space\n"),
        (typer.BadParameter("not so"), "classgrad: Invalid value: not so (see classgrad data list --help)\n"),
    ],
)
def test_errors_of_the_user_are_one_line_and_code_2(
    error: Exception, line: str, fails, capsys: pytest.CaptureFixture
) -> None:
    fails(error)
    assert main(["data", "list"]) == 2
    assert capsys.readouterr() == ("", line)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), typer.Abort()])
def test_an_interrupt_is_code_130(error: BaseException, fails) -> None:
    fails(error)
    assert main(["data", "list"]) == 130


def test_a_command_may_choose_its_code(fails) -> None:
    fails(typer.Exit(3))
    assert main(["data", "list"]) == 3


def test_a_mistake_of_the_program_is_not_hidden(fails) -> None:
    fails(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        main(["data", "list"])


def test_without_the_extra_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "typer", None)
    monkeypatch.delitem(sys.modules, "classgrad.cli._app")
    assert main(["data", "list"]) == 2
    line = "classgrad: the command needs the package typer: pip install 'classgrad[lab]'\n"
    assert capsys.readouterr() == ("", line)


def test_an_interrupt_while_starting_is_code_130(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupting:
        def find_spec(self, name: str, *args: object) -> None:
            if name == "classgrad.cli._app":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "classgrad.cli._app")
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    assert main(["data", "list"]) == 130


def test_every_command_explains_itself() -> None:
    def commands(group: object) -> list[object]:
        inner = getattr(group, "commands", {})
        return [group, *(found for command in inner.values() for found in commands(command))]

    for command in commands(typer.main.get_command(_app.app)):
        assert command.help
        for parameter in command.params:
            assert parameter.help or parameter.name == "help"

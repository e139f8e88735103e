"""The subcommands put together, and the one place where errors become exit codes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from classgrad._errors import InputError
from classgrad._version import __version__
from classgrad.cli import _compare, _data, _demo, _predict, _report, _theory, _train
from classgrad.cli._console import visible

app = typer.Typer(
    help="Learning under class imbalance: train, compare and look at every class.",
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command()(_demo.demo)
app.command()(_train.train)
app.command()(_compare.compare)
app.command()(_predict.predict)
app.command()(_report.report)
app.add_typer(_data.app, name="data")
app.add_typer(_theory.app, name="theory")


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    """Learning under class imbalance: train, compare and look at every class."""
    if version:
        print(f"classgrad {__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0, 2 for bad input, 130 for an interrupt."""
    command = typer.main.get_command(app)
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        code = command.main(args=given, prog_name="classgrad", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except InputError as error:
        return _refused(str(error))
    except OSError as error:
        return _refused(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except Exception as error:
        if not hasattr(error, "format_message"):  # the sign of a wrong option or argument
            raise
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "classgrad"
        return _refused(error.format_message(), f"(see {path} --help)")
    return code if isinstance(code, int) else 0


def _refused(reason: str, hint: str = "") -> int:
    """Print one line, unless there is nothing to say because the help was printed."""
    if reason:
        print(visible(" ".join(["classgrad:", *reason.split(), *hint.split()])), file=sys.stderr)
    return 2

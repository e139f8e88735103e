"""What every subcommand shares: ``--json``, ``--quiet``, tables and progress."""

from __future__ import annotations

import json
import math
import os
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]

_UNBOUNDED = 10_000


@dataclass(frozen=True)
class Output:
    """Standard output as the user asked for it: text and tables, or one JSON document, or nothing."""

    json: bool = False
    quiet: bool = False

    @property
    def talks(self) -> bool:
        """Whether text and tables are printed."""
        return not (self.json or self.quiet)

    def say(self, text: str) -> None:
        """Print a line of text as it is."""
        if self.talks:
            _console().print(visible(text), markup=False, highlight=False, soft_wrap=True)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None) -> None:
        """Print a table; columns that hold numbers alone are set to the right."""
        if not self.talks:
            return
        lines = [[visible(str(cell)) for cell in row] for row in rows]
        table = Table(title=None if title is None else Text(visible(title)), title_justify="left", header_style="bold")
        for position, column in enumerate(columns):
            numbers = all(_is_number(line[position]) for line in lines)
            table.add_column(Text(visible(column)), justify="right" if numbers else "left", overflow="fold")
        for line in lines:
            table.add_row(*map(Text, line))
        _console().print(table)

    def document(self, content: object) -> None:
        """Print ``content`` as JSON if that was asked for; numbers that JSON lacks (NaN, infinity) become null."""
        if self.json:
            print(json.dumps(_plain(content), indent=2, ensure_ascii=False, allow_nan=False))

    def progress(self) -> Progress:
        """Return a progress display on standard error, silent unless text is printed and a person watches."""
        console = Console(stderr=True)
        return Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not (self.talks and console.is_terminal),
        )


def visible(text: str) -> str:
    r"""Return a text whose control characters are spelled out: names from a file must not steer the terminal.

    >>> print(visible("a\x1b[31mb"))
    a\x1b[31mb
    """
    return "".join(c if c in "\n\t" or unicodedata.category(c) != "Cc" else f"\\x{ord(c):02x}" for c in text)


def _console() -> Console:
    """Return a console that never folds what goes into a file or a pipe."""
    console = Console()
    if console.is_terminal or "COLUMNS" in os.environ:
        return console
    return Console(width=_UNBOUNDED)


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", "") or 0)
    except ValueError:
        return False
    return True


def _plain(content: Any) -> Any:
    if isinstance(content, dict):
        return {str(key): _plain(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_plain(value) for value in content]
    if isinstance(content, float) and not math.isfinite(content):
        return None
    return content

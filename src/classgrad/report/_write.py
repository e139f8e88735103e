"""The report as files."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from classgrad._errors import InputError
from classgrad._files import write_atomically
from classgrad.dynamics import Run
from classgrad.report._experiments import Problem, problems
from classgrad.report._figures import KINDS, FigureFiles, write_figures
from classgrad.report._page import render

PAGE = "report.html"
FIGURES = "figures"


def write_report(
    runs: Sequence[Run],
    out: str | Path,
    *,
    title: str = "Learning under class imbalance",
    figures: Sequence[str] = KINDS,
) -> list[Path]:
    """Write ``report.html`` and the figures under ``out``, each file whole or not at all.

    Args:
        runs: The records, of any data sets, algorithms and seeds.
        out: The folder; figures go to ``figures`` inside it.
        title: Heading of the page.
        figures: The kinds of files to write every figure as.

    Returns:
        The paths, the HTML file first.
    """
    grouped = problems(runs)
    try:
        return _write(grouped, Path(out), title, figures)
    except OSError as error:
        raise InputError(f"The report cannot be written to {out}: {error.strerror or error}.") from error


def _write(grouped: Sequence[Problem], out: Path, title: str, figures: Sequence[str]) -> list[Path]:
    drawn = write_figures(grouped, out / FIGURES, figures)
    page = render(grouped, title, [_links(figure, out) for figure in drawn])
    write_atomically(out / PAGE, partial(_write_text, page))
    return [out / PAGE, *(path for figure in drawn for path in figure.paths)]


def _links(figure: FigureFiles, out: Path) -> dict[str, Any]:
    """Give what the page says of a figure: links that hold as long as page and figures stay together."""
    files = [{"href": path.relative_to(out).as_posix(), "kind": path.suffix[1:].upper()} for path in figure.paths]
    return {"title": figure.title, "files": files}


def _write_text(text: str, path: Path) -> None:
    path.write_text(text, encoding="utf-8")

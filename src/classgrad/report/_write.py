"""The report as files."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from classgrad._files import write_atomically
from classgrad.dynamics import Run
from classgrad.report._experiments import problems
from classgrad.report._page import render

PAGE = "report.html"


def write_report(runs: Sequence[Run], out: Path, *, title: str = "Learning under class imbalance") -> list[Path]:
    """Write ``report.html`` and the figures as PNG and PDF under ``out``, each file whole or not at all.

    Returns the paths, the HTML file first.
    """
    grouped = problems(runs)
    page = render(grouped, title)
    write_atomically(out / PAGE, partial(_write_text, page))
    return [out / PAGE]


def _write_text(text: str, path: Path) -> None:
    path.write_text(text, encoding="utf-8")

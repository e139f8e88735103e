"""``classgrad report``: table, page and figures of runs that are there already."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from classgrad._errors import InputError
from classgrad.cli._console import Json, Output, Quiet
from classgrad.cli._experiment import show_results
from classgrad.dynamics import Run, load_run
from classgrad.training import ALGORITHMS

RECORD = "run.npz"

Runs = Annotated[
    list[Path],
    typer.Argument(metavar="RUNS...", help=f"Run files, or folders with {RECORD} files anywhere inside."),
]
Out = Annotated[
    Path | None,
    typer.Option(help="Folder for the report; by default the folder given, else report.", show_default=False),
]
Title = Annotated[str, typer.Option(help="Heading of the page.")]


def report(
    runs: Runs,
    out: Out = None,
    title: Title = "Learning under class imbalance",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Print the results of runs and write their report: an HTML page, and figures as PNG and PDF.

    For example: classgrad report runs/digits-bi20
    """
    found = _in_order([load_run(file) for path in runs for file in _files(path)])
    folder = out or (runs[0] if len(runs) == 1 and runs[0].is_dir() else Path("report"))
    show_results(found, folder, Output(json, quiet), title=title)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(path.rglob(RECORD))
    if not files:
        raise InputError(f"RUNS: no {RECORD} in the folder {path} or below; make some with classgrad train or compare")
    return files


def _in_order(runs: Sequence[Run]) -> list[Run]:
    """Sort by data set, the paper's order of algorithms, and seed: files come in the order of their names."""
    places = {name: place for place, name in enumerate(ALGORITHMS)}

    def rank(run: Run) -> tuple[str, int, str, int]:
        algorithm = str(run.meta.get("algorithm"))
        place = places.get(algorithm.partition("(")[0], len(places))
        return str(run.meta.get("data")), place, algorithm, run.meta.get("seed") or 0

    return sorted(runs, key=rank)

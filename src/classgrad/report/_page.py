"""The HTML page: everything in one file, user text escaped, readable without its script."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any

from classgrad._lab import lab_module
from classgrad._version import __version__
from classgrad.dynamics import Summary
from classgrad.report._colours import THEMES, class_colours
from classgrad.report._curves import MANY, QUANTITIES
from classgrad.report._experiments import Problem
from classgrad.report._findings import findings, listing
from classgrad.report._payload import dump, packed, payload
from classgrad.report._repeat import commands, settings
from classgrad.report._results import COLUMNS, ResultRow, percentage, rows_of

GLOSSARY = (
    ("recall", "Share of a class's examples that are recognized."),
    ("macro recall", "Mean of the recalls of all classes: every class counts the same, however small."),
    ("peak macro recall", "The highest macro recall along the run, mean over the seeds ± standard error."),
    (
        "steps to R*",
        "τ: the first measured step at which macro recall reaches R*, mean over the seeds. Its error is the smaller of "
        "the standard error and the interval between measurements, as in the paper.",
    ),
    ("R*", "The recall that is waited for: two fifths of the way from chance to 100 %."),
    ("minority recall", "Mean recall of the minority classes (fewer examples than the average class) at the end."),
    (
        "minority initial drop (MID)",
        "Whether the minority classes first get worse, well below both where they began and chance, before they are "
        "learnt; how far they fall below the lower of the two, in percentage points; and which share of it they lose.",
    ),
)

READING = (
    "Lines are means over the seeds and bands their standard errors. The step axis is logarithmic in step + 1, so that "
    "step 0, before training, is on it. Orange shading marks the minority initial drop, triangles the lowest point of "
    "each class that drops."
)
READING_GROUPS = (
    f" A data set of more than {MANY} classes is drawn as three groups of classes by size: lines are means over the "
    "classes (medians on logarithmic axes), bands hold four fifths of the classes."
)


_SHOWN = [title for title in COLUMNS if title != "R*"]


def render(problems: Sequence[Problem], title: str, figures: Sequence[dict[str, Any]] = ()) -> str:
    """Write the page."""
    jinja2 = lab_module("jinja2", "The HTML report")
    plotly = lab_module("plotly.offline", "The HTML report")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    many = any(len(problem.order) > MANY for problem in problems)
    page: str = environment.from_string(_asset("report.html")).render(
        title=title,
        version=__version__,
        style=_asset("style.css"),
        script=_asset("plots.js") + _asset("app.js"),
        data=packed(dump(payload(problems))),
        plotly=packed(plotly.get_plotlyjs()),
        lede=_lede(problems),
        reading=READING + (READING_GROUPS if many else ""),
        glossary=GLOSSARY,
        quantities=QUANTITIES,
        problems=_views(problems),
        commands=[line for problem in problems for line in commands(problem)],
        figures=figures,
    )
    return page


def _asset(name: str) -> str:
    return files("classgrad.report").joinpath("page", name).read_text(encoding="utf-8")


def _lede(problems: Sequence[Problem]) -> str:
    runs = [run for problem in problems for run in problem.runs]
    names = dict.fromkeys(e.label for problem in problems for e in problem.experiments)
    what = f"{len(names)} algorithms" if len(names) > 1 else f"the algorithm {next(iter(names))}"
    data = listing([problem.label for problem in problems])
    return (
        f"How {what} learn{'s' if len(names) == 1 else ''} every class of {data}: {len(runs)} training run"
        f"{'s' if len(runs) > 1 else ''}, each class watched on its own."
    )


def _views(problems: Sequence[Problem]) -> list[dict[str, Any]]:
    numbered: dict[str, int] = {}
    return [_view(problem, numbered) for problem in problems]


def _view(problem: Problem, numbered: dict[str, int]) -> dict[str, Any]:
    """Gather what the template says of a problem; notes are numbered through the page, the same note once."""
    rows = rows_of(problem)
    for row in rows:
        for note in row.notes:
            numbered.setdefault(note, len(numbered) + 1)
    mine = dict.fromkeys(note for row in rows for note in row.notes)
    shared, differing = settings(problem)
    return {
        "label": problem.label,
        "many": len(problem.order) > MANY,
        "findings": findings(rows),
        "facts": _facts(problem),
        "sizes": _sizes(problem),
        "split": next((row.summary.split for row in rows if row.summary), None),
        "columns": _columns(rows),
        "rows": [_row(row, rows, numbered) for row in rows],
        "notes": [_note(note, numbered) for note in mine],
        "names": [experiment.label for experiment in problem.experiments],
        "shared": shared,
        "differing": differing,
    }


def _note(note: str, numbered: dict[str, int]) -> dict[str, Any]:
    return {"text": note, "number": numbered[note], "id": f"note-{numbered[note]}"}


def _columns(rows: Sequence[ResultRow]) -> list[str]:
    """Column titles; R*, which all rows share, is named in the title of τ."""
    goal = next((percentage(row.summary.tau.threshold) for row in rows if row.summary), "R*")
    return [f"steps to R* = {goal}" if title == "steps to R*" else title for title in _SHOWN]


def _row(row: ResultRow, rows: Sequence[ResultRow], numbered: dict[str, int]) -> dict[str, Any]:
    texts = row.cells()
    return {
        "algorithm": row.algorithm,
        "notes": [_note(note, numbered) for note in row.notes],
        "cells": [{"text": texts[title], "kind": _kind(title, row, rows)} for title in _SHOWN],
    }


_MERITS: dict[str, Callable[[Summary], float]] = {
    "peak macro recall": lambda summary: summary.peak.mean,
    "steps to R*": lambda summary: -summary.tau.value,
    "minority recall": lambda summary: summary.minority_final.mean,
}


def _kind(title: str, row: ResultRow, rows: Sequence[ResultRow]) -> str:
    """How a cell is set off: the best of its column, a drop, no drop."""
    if row.summary is None:
        return ""
    if title == "minority initial drop":
        share = row.summary.mid_fraction
        return "" if math.isnan(share) else "drop" if share > 0 else "calm"
    if title not in _MERITS or len(rows) == 1:
        return ""
    merit = _MERITS[title]
    known = [merit(other.summary) for other in rows if other.summary and math.isfinite(merit(other.summary))]
    return "best" if known and merit(row.summary) == max(known) else ""


_TOLD = {"model": "model", "optimizer": "optimizer", "lr": "learning rate", "steps": "steps"}


def _facts(problem: Problem) -> str:
    shared, differing = (dict(part) for part in settings(problem))
    counts = problem.counts
    ratio = f"{counts.max() / counts.min():.3g} : 1 from the largest to the smallest" if counts.min() else "one empty"
    seeds = sorted({len(experiment.runs) for experiment in problem.experiments})
    parts = [f"{len(counts)} classes, {ratio}", f"{' to '.join(map(str, seeds))} seed{'s' * (seeds != [1])} each"]
    known = {**{name: listing(sorted(set(values))) for name, values in differing.items()}, **shared}
    parts += [f"{title} {known[name]}" for name, title in _TOLD.items() if name in known]
    return "; ".join(parts) + "."


def _sizes(problem: Problem) -> list[dict[str, Any]]:
    counts = problem.counts[problem.order].tolist()
    colours = {theme: class_colours(len(counts), theme) for theme in THEMES}
    return [
        {
            "name": name,
            "text": f"{count:,}",
            "share": round(count / max(counts[0], 1), 4),
            **{theme: colours[theme][place] for theme in THEMES},
        }
        for place, (name, count) in enumerate(zip(problem.classes, counts, strict=True))
    ]

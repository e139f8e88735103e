"""What the page's script draws, as one JSON document."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from classgrad.dynamics import SPLITS
from classgrad.report._colours import THEMES, Look, algorithm_looks, class_colours
from classgrad.report._curves import (
    MANY,
    OVERVIEW,
    QUANTITIES,
    Curves,
    Quantity,
    class_means,
    curves_of,
    lines_of,
    overview_of,
    step_ticks,
)
from classgrad.report._drops import DropView, Span, view_drop
from classgrad.report._experiments import PREFERRED_SPLITS, Experiment, Problem

DIGITS = 4
"""Significant digits of the numbers in the page."""


def payload(problems: Sequence[Problem]) -> dict[str, Any]:
    """Gather everything the script draws."""
    looks = algorithm_looks([e.label for problem in problems for e in problem.experiments])
    return {
        "quantities": [_quantity(quantity) for quantity in QUANTITIES],
        "problems": [_problem(problem, looks) for problem in problems],
    }


def packed(text: str) -> str:
    """Compress a text for a page: gzip in base64, which needs no escaping and is much smaller.

    >>> gzip.decompress(base64.b64decode(packed("<script>"))).decode()
    '<script>'
    """
    return base64.b64encode(gzip.compress(text.encode(), compresslevel=9, mtime=0)).decode()


def dump(content: dict[str, Any]) -> str:
    """Write the payload as JSON without spaces."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _quantity(quantity: Quantity) -> dict[str, Any]:
    return {
        "name": quantity.name,
        "title": quantity.title,
        "axis": quantity.axis,
        "scale": quantity.scale,
        "limits": quantity.limits,
        "ticks": quantity.ticks,
        "level": quantity.level,
        "bySplit": quantity.by_split,
    }


def _problem(problem: Problem, looks: dict[str, Look]) -> dict[str, Any]:
    lines = lines_of(problem)
    counts = problem.counts[problem.order].tolist()
    drops = [{split: view_drop(e, split) for split in e.splits} for e in problem.experiments]
    splits = [s for s in PREFERRED_SPLITS if any(s in run.splits for run in problem.runs)]
    return {
        "label": problem.label,
        "classes": [{"name": name, "count": count} for name, count in zip(problem.classes, counts, strict=True)],
        "lines": [{"label": line.label, "name": line.name} for line in lines],
        "colours": {theme: class_colours(len(lines), theme) for theme in THEMES},
        "last": problem.last,
        "ticks": step_ticks(problem.last),
        "splits": splits or list(PREFERRED_SPLITS[-1:]),
        "opening": _opening(problem, drops),
        "experiments": [
            {"label": e.label, **asdict(looks[e.label]), **_experiment(problem, e, found)}
            for e, found in zip(problem.experiments, drops, strict=True)
        ],
    }


def _opening(problem: Problem, drops: Sequence[dict[str, DropView]]) -> list[str]:
    """Choose what the page opens with: the first algorithm whose minority drops, beside the first without a drop."""
    shown = [any(view.span for view in views.values()) for views in drops]
    labels = [experiment.label for experiment in problem.experiments]
    dropping = [label for label, drop in zip(labels, shown, strict=True) if drop]
    others = [label for label in labels if label not in dropping]
    return list(dict.fromkeys([*dropping[:1], *others[:1], *labels]))[:2]


def _experiment(problem: Problem, experiment: Experiment, drops: dict[str, DropView]) -> dict[str, Any]:
    lines = lines_of(problem)
    curves, maps = {}, {}
    for quantity in QUANTITIES:
        for split in SPLITS if quantity.by_split else SPLITS[:1]:
            name = f"{split}/{quantity.name}" if quantity.by_split else quantity.name
            curves[name] = _curves(curves_of(experiment, quantity, split, lines))
            if len(problem.order) > MANY and quantity.mapped:
                maps[name] = _curves(class_means(experiment, quantity, split, problem.order))
    return {
        "curves": curves,
        "maps": maps,
        "overview": {
            split: {name: _curves(overview_of(experiment, name, split)) for name in OVERVIEW}
            for split in experiment.splits
        },
        "drops": {split: {"sentence": view.sentence, "span": _span(view.span, lines)} for split, view in drops.items()},
        "confusions": {split: _confusions(problem, experiment, split, view.span) for split, view in drops.items()},
    }


def _curves(curves: Curves | None) -> dict[str, Any] | None:
    if curves is None:
        return None
    return {
        "steps": curves.steps.tolist(),
        "mean": _short(curves.mean),
        "low": _short(curves.low),
        "high": _short(curves.high),
        "grouped": curves.grouped,
    }


def _span(span: Span | None, lines: Sequence[Any]) -> dict[str, Any] | None:
    if span is None:
        return None
    places = {int(line.classes[0]): place for place, line in enumerate(lines) if len(line.classes) == 1}
    lowest = {places[label]: step for label, step in span.lowest.items() if label in places}
    return {"start": span.start, "end": span.end, "bottom": span.bottom, "lowest": lowest}


def _confusions(problem: Problem, experiment: Experiment, split: str, span: Span | None) -> dict[str, Any]:
    last = final_step(experiment)
    moments = {"final": (last, f"at the end (step {last:,})")}
    if span is not None:
        moments["bottom"] = (span.bottom, f"at the bottom of the drop (step {span.bottom:,})")
    return {
        moment: {"title": title, "matrix": confusion_at(problem, experiment, split, step).tolist()}
        for moment, (step, title) in moments.items()
    }


def final_step(experiment: Experiment) -> int:
    """Find the last step that all seeds measured."""
    return int(reduce(np.intersect1d, [run.steps for run in experiment.averaged])[-1])


def confusion_at(problem: Problem, experiment: Experiment, split: str, step: int) -> NDArray[np.int64]:
    """Add the confusion matrices of all seeds at one step, classes from majority to minority."""
    total = np.sum([run.confusion(split)[run.steps == step][0] for run in experiment.averaged], axis=0)
    matrix: NDArray[np.int64] = total[np.ix_(problem.order, problem.order)].astype(np.int64)
    return matrix


def _short(values: NDArray[np.float64]) -> list[list[float | None]]:
    """Numbers of a few digits; None for what is not finite."""
    return [[float(f"{value:.{DIGITS}g}") if np.isfinite(value) else None for value in row] for row in values.tolist()]

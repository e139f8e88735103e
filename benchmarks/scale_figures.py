"""The rows of scale.py as figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scale_tables import recorded_ratio, total_memory_ratio

from classgrad.report._colours import algorithm_looks
from classgrad.report._figures import STYLE, WIDTH

Row = dict[str, Any]
Points = list[tuple[float, float]]
HEIGHT = 2.6
MEMORY_GOAL = 1.3


def write_figures(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Draw every axis that has rows as an SVG file."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": "classgrad", "figure.constrained_layout.use": True}):
        for axis, draw in FIGURES.items():
            chosen = [row for row in rows if row["axis"] == axis]
            if chosen:
                paths.append(folder / f"scale-{axis}.svg")
                draw(chosen).savefig(paths[-1], metadata={"Date": None, "Creator": None})
    return paths


def _classes(rows: Sequence[Row]) -> Figure:
    def name(row: Row) -> str:
        return f"{row['model']}, batch {row['batch']:,}, {row['sizes']}"

    return _steps(rows, "classes", name, "classes in the batch")


def _batch(rows: Sequence[Row]) -> Figure:
    return _steps(rows, "batch", lambda row: f"{row['model']}, {row['classes']} classes", "batch size")


def _steps(rows: Sequence[Row], along: str, name: Callable[[Row], str], label: str) -> Figure:
    """Draw the time of a class-gradient step, and its ratio to the plain one: recorded where that was measured."""
    recorded = any(recorded_ratio(row) for row in rows)
    contender = "captured" if recorded else "fused"
    figure, (left, right) = _panels()
    for at, line in enumerate(dict.fromkeys(map(name, rows))):
        look = _look(at)
        own = [row for row in rows if name(row) == line]
        times = [(row[along], 1e3 * row["results"][contender]["seconds"]) for row in own if _has(row, contender)]
        _line(left, times, look, line)
        ratios = [(row[along], _time_ratio(row, recorded)) for row in own]
        _line(right, [(x, ratio) for x, ratio in ratios if ratio is not None], look, line)
    what = "step, captured" if recorded else "step"
    _finish(figure, left, right, label, f"class-gradient {what} [ms]", "time / plain step")
    return figure


def _parameters(rows: Sequence[Row]) -> Figure:
    recorded = any(recorded_ratio(row) for row in rows)
    figure, (left, right) = _panels()
    for at, classes in enumerate(dict.fromkeys(row["classes"] for row in rows)):
        own = [row for row in rows if row["classes"] == classes]
        times = [(row["parameters"], _time_ratio(row, recorded)) for row in own]
        memory = [(row["parameters"], total_memory_ratio(row)) for row in own]
        for axes, points in ((left, times), (right, memory)):
            _line(axes, [(x, y) for x, y in points if y is not None], _look(at), f"{classes} classes")
    right.axhline(MEMORY_GOAL, color="#777777", linewidth=0.7, linestyle=":")
    kind = "both captured" if recorded else "both eager"
    titles = (f"time / plain step, {kind}", "peak memory / plain step")
    _finish(figure, left, right, "parameters", *titles, scales=("linear", "linear"))
    return figure


def _samplers(rows: Sequence[Row]) -> Figure:
    figure, (left, right) = _panels()
    most = max(row["classes"] for row in rows)
    chosen = [row for row in rows if row["classes"] == most]
    for at, sampler in enumerate(dict.fromkeys(row["sampler"] for row in chosen)):
        own = [row for row in chosen if row["sampler"] == sampler]
        for axes, key in ((left, "setup_seconds"), (right, "first_seconds")):
            _line(axes, [(row["examples"], row[key]) for row in own if row[key] > 1e-4], _look(at), sampler)
    titles = ("set-up [s]", "then, to the first batch [s]")
    _finish(figure, left, right, f"examples ({most:,} classes)", *titles, scales=("log", "log"))
    return figure


def _panels() -> tuple[Figure, tuple[Axes, Axes]]:
    figure = Figure(figsize=(WIDTH, HEIGHT))
    left, right = figure.subplots(1, 2)
    return figure, (left, right)


def _look(at: int) -> dict[str, Any]:
    look = list(algorithm_looks([str(number) for number in range(at + 1)]).values())[at]
    return {"color": look.colours["light"], "linestyle": "-" if look.dash == "solid" else "--"}


def _line(axes: Axes, points: Points, look: dict[str, Any], label: str) -> None:
    axes.plot([x for x, _ in points], [y for _, y in points], marker="o", markersize=2.5, label=label, **look)


def _has(row: Row, contender: str) -> bool:
    return "seconds" in row["results"].get(contender, {})


def _time_ratio(row: Row, recorded: bool) -> float | None:
    return recorded_ratio(row) if recorded else row["results"].get("fused", {}).get("time_ratio")


def _finish(
    figure: Figure,
    left: Axes,
    right: Axes,
    label: str,
    first: str,
    second: str,
    scales: tuple[str, str] = ("log", "linear"),
) -> None:
    for axes, title, scale in ((left, first, scales[0]), (right, second, scales[1])):
        axes.set_xscale("log")
        axes.set_yscale(scale)
        if scale == "linear":
            axes.set_ylim(bottom=0)
        axes.set_xlabel(label)
        axes.set_title(title)
    handles = {
        name: line for axes in (left, right) for line, name in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=3)


FIGURES: dict[str, Callable[[Sequence[Row]], Figure]] = {
    "classes": _classes,
    "batch": _batch,
    "parameters": _parameters,
    "samplers": _samplers,
}

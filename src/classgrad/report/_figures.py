"""The figures of the page for papers: PNG and PDF through matplotlib, without pyplot and its global state."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from classgrad._errors import InputError
from classgrad._files import write_atomically
from classgrad._lab import lab_module
from classgrad.report._colours import algorithm_looks
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
)
from classgrad.report._drops import Span, view_drop
from classgrad.report._experiments import Problem
from classgrad.report._panels import (
    class_looks,
    draw_confusion,
    draw_curves,
    draw_drop,
    draw_lowest,
    draw_map,
    plain_text,
    step_axis,
    value_axis,
)
from classgrad.report._payload import confusion_at, final_step

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS = ("png", "pdf")
WIDTH = 6.75
"""Inches: the text width of a page of two columns."""
_COLUMNS = (4, 3, 5, 7, 11)  # the first that does not divide the number of panels: one is left over for the legend
STYLE = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.labelsize": 8,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 8,
    "font.size": 8,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.5,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "pdf.fonttype": 42,
    "savefig.dpi": 200,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
}
"""matplotlib settings: small sans-serif type, thin lines, fonts that journals accept in a PDF."""
_LINESTYLES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
_METADATA: dict[str, dict[str, Any]] = {"png": {"Software": None}, "pdf": {"CreationDate": None, "Producer": None}}


@dataclass(frozen=True)
class FigureFiles:
    """A figure that was written: what it shows, and its files."""

    title: str
    paths: tuple[Path, ...]


def write_figures(problems: Sequence[Problem], folder: Path, kinds: Sequence[str] = KINDS) -> list[FigureFiles]:
    """Write every figure of every problem, named after the data set and what they show."""
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        raise InputError(f"Parameter `figures` should name kinds of {', '.join(KINDS)}. Found {unknown[0]!r}.")
    if not kinds:
        return []
    matplotlib = lab_module("matplotlib", "Figures as PNG and PDF")
    written = []
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # names in scripts the font lacks show as boxes
        for problem, stem in zip(problems, _stems(problems), strict=True):
            for name, title, draw in _drawings(problem):
                figure = _laid_out(draw())
                paths = tuple(folder / f"{stem}-{name}.{kind}" for kind in kinds)
                for path in paths:
                    write_atomically(path, partial(_save, figure, path.suffix[1:]))
                written.append(FigureFiles(f"{problem.label}, {title}", paths))
    return written


def _laid_out(figure: Figure) -> Figure:
    """Arrange the panels once; an engine kept by the figure would do it again for every file."""
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    ConstrainedLayoutEngine().execute(figure)
    return figure


def _save(figure: Figure, kind: str, path: Path) -> None:
    figure.savefig(path, format=kind, metadata=_METADATA[kind])


def _stems(problems: Sequence[Problem]) -> list[str]:
    """File names that any system takes, different for every problem."""
    plain = [re.sub(r"[^a-z0-9]+", "-", problem.label.lower()).strip("-") or "data" for problem in problems]
    return [f"{name}-{place + 1}" if plain.count(name) > 1 else name for place, name in enumerate(plain)]


Drawing = tuple[str, str, Callable[[], "Figure"]]


def _drawings(problem: Problem) -> Iterator[Drawing]:
    """Name, title and maker of every figure that the runs have the numbers for."""
    split = next((e.split for e in problem.experiments if e.split), "train")
    spans = [view_drop(e, split).span if split in e.splits else None for e in problem.experiments]
    if any(split in experiment.splits for experiment in problem.experiments):
        yield "overview", f"all algorithms, {split} set", partial(_overview, problem, split)
    for quantity in QUANTITIES:
        if any(e.measured(quantity.series.format(split=split)) for e in problem.experiments):
            where = split if quantity.by_split else "train"
            title = f"{quantity.title[0].lower()}{quantity.title[1:]}, {where} set"
            yield quantity.name, title, partial(_classes, problem, quantity, split, spans)
            if quantity.mapped and len(problem.order) > MANY:
                yield f"{quantity.name}-map", f"{title}, all classes", partial(_maps, problem, quantity, split)
    final = [final_step(e) if split in e.splits else None for e in problem.experiments]
    bottom = [span.bottom if span else None for span in spans]
    for name, title, steps in (("confusion", "at the end", final), ("confusion-drop", "at the drop", bottom)):
        if any(step is not None for step in steps):
            yield name, f"confusion {title}, {split} set", partial(_confusions, problem, split, steps)


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height))


def _overview(problem: Problem, split: str) -> Figure:
    figure = _figure(WIDTH, 2.5)
    looks = algorithm_looks([experiment.label for experiment in problem.experiments])
    titles = {"macro": "macro recall", "minority": "recall of the minority classes"}
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    shown: list[Curves] = []
    for axes, name in zip(panels, OVERVIEW, strict=True):
        drawn = [(e.label, overview_of(e, name, split)) for e in problem.experiments]
        for label, curves in drawn:
            style = {"color": looks[label].colours["light"], "linestyle": _LINESTYLES[looks[label].dash]}
            if curves is not None:
                draw_curves(axes, curves, [{**style, "label": plain_text(label, 34)}])
        shown += [curves for _, curves in drawn if curves is not None]
        axes.set_title(f"{titles[name]} ({split})")
        axes.set_xlabel("training step")
    value_axis(panels[0], QUANTITIES[0], shown)
    step_axis(panels[0], problem.last)
    panels[0].set_ylabel(QUANTITIES[0].axis)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center")
    return figure


def _panels(problem: Problem, height: float, *, legend: bool = False) -> tuple[Figure, list[Axes], list[Axes]]:
    """Make one panel per experiment, axes labelled at the outside; those left over, some if for a legend, second."""
    count = len(problem.experiments)
    columns = next(number for number in _COLUMNS if count % number or not legend)
    columns = min(columns, count + legend)
    rows = math.ceil(count / columns)
    figure = _figure(WIDTH * min(max(columns, 2) / _COLUMNS[0], 1), height * rows + 0.35)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel().tolist()
    for axes, experiment in zip(grid, problem.experiments, strict=False):
        axes.set_title(plain_text(experiment.label, 26))
    for above, axes in zip(grid[count - columns :], grid[count:], strict=False):
        axes.set_axis_off()
        above.tick_params(labelbottom=True)
    return figure, grid[:count], grid[count:]


def _classes(problem: Problem, quantity: Quantity, split: str, spans: Sequence[Span | None]) -> Figure:
    figure, panels, spare = _panels(problem, 1.55, legend=True)
    lines = lines_of(problem)
    looks = class_looks(lines)
    places = {int(line.classes[0]): at for at, line in enumerate(lines) if len(line.classes) == 1}
    drawn = [curves_of(experiment, quantity, split, lines) for experiment in problem.experiments]
    for axes, curves, span in zip(panels, drawn, spans, strict=True):
        if curves is None:
            axes.text(0.5, 0.5, "not measured", ha="center", va="center", transform=axes.transAxes)
            continue
        draw_curves(axes, curves, looks, log=quantity.scale == "log")
        if span is not None and quantity.by_split:
            draw_drop(axes, span, int(curves.steps[-1]))
        if span is not None and quantity.name == "recall":
            lowest = {places[label]: step for label, step in span.lowest.items() if label in places}
            draw_lowest(axes, curves, lowest, [look["color"] for look in looks])
        if quantity.level is not None:
            axes.axhline(quantity.level, color="#777777", linewidth=0.7, linestyle=":")
    value_axis(panels[0], quantity, [curves for curves in drawn if curves is not None])  # the others share it
    step_axis(panels[0], problem.last)
    figure.supxlabel("training step", fontsize=8)
    figure.supylabel(quantity.axis, fontsize=8)
    named = {name: handle for axes in panels for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    spare[0].legend(named.values(), named, loc="center left", borderaxespad=0, handlelength=1.2)
    return figure


def _maps(problem: Problem, quantity: Quantity, split: str) -> Figure:
    figure, panels, _ = _panels(problem, 1.9)
    for axes, experiment in zip(panels, problem.experiments, strict=True):
        curves = class_means(experiment, quantity, split, problem.order)
        if curves is not None:
            image = draw_map(axes, curves, quantity.limits)
            step_axis(axes, problem.last)
    figure.supxlabel("training step", fontsize=8)
    figure.supylabel("classes, largest first", fontsize=8)
    figure.colorbar(image, ax=panels, label=quantity.axis, shrink=0.8)
    return figure


def _confusions(problem: Problem, split: str, steps: Sequence[int | None]) -> Figure:
    chosen = [(e, step) for e, step in zip(problem.experiments, steps, strict=True) if step is not None]
    shown = Problem(problem.label, tuple(experiment for experiment, _ in chosen))
    figure, panels, _ = _panels(shown, 1.75)
    names = problem.classes if len(problem.order) <= MANY else None
    for axes, (experiment, step) in zip(panels, chosen, strict=True):
        image = draw_confusion(axes, confusion_at(problem, experiment, split, step), names)
        axes.set_title(f"{plain_text(experiment.label, 16)}, step {step:,}")
    if names is None:
        figure.colorbar(image, ax=panels, label="% of the true class", shrink=0.8)
    figure.supxlabel("given to", fontsize=8)
    figure.supylabel("true class" if names is None else "true class [% of its examples]", fontsize=8)
    return figure

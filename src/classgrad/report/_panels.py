"""Single panels of the figures for papers, drawn on matplotlib axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from classgrad.report._colours import class_colours
from classgrad.report._curves import Curves, Line, Quantity, step_ticks
from classgrad.report._drops import Span

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DROP = "minority initial drop"
SHADE = "#d67d00"
"""Colour of the minority initial drop."""


def plain_text(text: str, most: int) -> str:
    """Shorten a text that users chose, and keep matplotlib from reading mathematics or "not for the legend" in it."""
    short = text if len(text) <= most else f"{text[: most - 1]}…"
    spaced = f" {short}" if short.startswith("_") else short
    return spaced.replace("$", r"\$")


def place(steps: NDArray[np.int64] | Sequence[int]) -> NDArray[np.float64]:
    """Where steps lie on the axis, which is logarithmic in step + 1 so that step 0 is on it."""
    where: NDArray[np.float64] = np.log10(1.0 + np.asarray(steps))
    return where


def step_axis(axes: Axes, last: int) -> None:
    """Set up the axis of steps."""
    ticks = step_ticks(last)
    axes.set_xlim(-0.04, float(place([last])[0]) * 1.02)
    axes.set_xticks(place(ticks), [f"{step:,}" for step in ticks])


def value_axis(axes: Axes, quantity: Quantity, drawn: Sequence[Curves]) -> None:
    """Set up the axis of values for curves that share it."""
    highest = max((float(np.nanmax(part)) for curves in drawn for part in _finite(curves)), default=0.0)
    if quantity.scale == "log":
        _log_axis(axes)
    else:
        low = quantity.limits[0]
        high = min(quantity.limits[1], quantity.ticks * max(1, math.ceil(1.05 * highest / quantity.ticks)))
        axes.set_yticks(np.arange(low, high + 1, quantity.ticks if high > quantity.ticks else quantity.ticks / 4))
        axes.set_ylim(low - 0.03 * (high - low), high + 0.03 * (high - low))


def _log_axis(axes: Axes) -> None:
    """Name 1, 2 and 5 on a short logarithmic axis, powers of ten on a long one; no other ticks, which draw slowly."""
    from matplotlib.ticker import FuncFormatter, LogLocator

    low, high = axes.get_ylim()
    if high < 100 * low:
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.minorticks_off()


def _finite(curves: Curves) -> list[NDArray[np.float64]]:
    return [part[np.isfinite(part)] for part in (curves.mean, curves.high) if np.isfinite(part).any()]


def draw_curves(axes: Axes, curves: Curves, looks: Sequence[dict[str, Any]], log: bool = False) -> None:
    """Draw every line with its band; ``looks`` are the arguments of matplotlib's plot for each."""
    from matplotlib.collections import PolyCollection

    where = place(curves.steps)
    if log:
        axes.set_yscale("log")
    bands = []
    for mean, low, high, look in zip(curves.mean, curves.low, curves.high, looks, strict=True):
        known = np.isfinite(mean) & ((mean > 0) if log else True)
        axes.plot(where[known], mean[known], zorder=3, **look)
        banded = known & np.isfinite(low) & np.isfinite(high)
        bottom = np.maximum(low, mean / 100) if log else low
        there, back = np.stack([where, high], axis=-1)[banded], np.stack([where, bottom], axis=-1)[banded]
        bands.append(np.concatenate([there, back[::-1]]))
    colours = [look["color"] for look in looks]
    axes.add_collection(PolyCollection(bands, facecolors=colours, alpha=0.2, linewidths=0, zorder=2), autolim=False)


def draw_drop(axes: Axes, span: Span, last: int) -> None:
    """Shade a minority initial drop."""
    start, end = place([span.start, last if span.end is None else span.end])
    axes.axvspan(float(start), float(end), color=SHADE, alpha=0.12, linewidth=0, zorder=0, label=DROP)


def draw_lowest(axes: Axes, curves: Curves, lowest: dict[int, int], colours: Sequence[str]) -> None:
    """Mark the lowest point of every line that dropped, given by line."""
    for line, step in lowest.items():
        at = int(np.flatnonzero(curves.steps == step)[0])
        axes.plot(
            place([step]), curves.mean[line, at : at + 1], marker="v", markersize=5, color=colours[line],
            markeredgecolor="black", markeredgewidth=0.5, zorder=4,
        )  # fmt: skip


def draw_confusion(axes: Axes, matrix: NDArray[np.int64], names: Sequence[str] | None) -> Any:
    """Draw a confusion matrix in per cent of the true class; numbers and names where ``names`` are given."""
    from matplotlib.colors import PowerNorm

    totals = matrix.sum(axis=1, keepdims=True)
    shares = np.divide(100 * matrix, totals, out=np.zeros(matrix.shape), where=totals > 0)
    faint = 1.0 if names else 0.5  # spread over many classes, small shares must show too
    image = axes.imshow(shares, cmap="Blues", norm=PowerNorm(faint, vmin=0, vmax=100), interpolation="nearest")
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    if names is None:
        axes.set_xticks([0, len(matrix) - 1], ["1", str(len(matrix))])
        axes.set_yticks([0, len(matrix) - 1], ["1", str(len(matrix))])
        return image
    short = [plain_text(name, 12) for name in names]
    axes.set_xticks(range(len(names)), short, rotation=90 if len(names) > 2 else 0)
    axes.set_yticks(range(len(names)), short)
    size = 8 if len(names) <= 4 else 4.5
    for row, column in np.argwhere(shares >= 0.5).tolist():  # a cell that rounds to 0 stays empty
        share = shares[row, column]
        axes.text(column, row, f"{share:.0f}", ha="center", va="center", size=size, color="w" if share > 60 else "k")
    return image


def draw_map(axes: Axes, curves: Curves, limits: tuple[float, float]) -> Any:
    """Draw the values of all classes, largest first, as a map over steps."""
    where = place(curves.steps)
    middles = (where[1:] + where[:-1]) / 2
    edges = np.concatenate([where[:1], middles, where[-1:]])
    rows = np.arange(len(curves.mean) + 1) + 0.5
    image = axes.pcolormesh(edges, rows, curves.mean, cmap="cividis", vmin=limits[0], vmax=limits[1], rasterized=True)
    axes.set_ylim(len(curves.mean) + 0.5, 0.5)
    axes.grid(visible=False)
    return image


def class_looks(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Give the lines of the classes their colours and their names in the legend."""
    colours = class_colours(len(lines))
    labels = [f"{plain_text(line.name, 20)} ({line.detail})" for line in lines]
    return [{"color": colour, "label": label} for colour, label in zip(colours, labels, strict=True)]

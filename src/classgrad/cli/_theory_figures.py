"""Figures of ``classgrad theory``, through matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from classgrad._errors import InputError
from classgrad._files import write_atomically
from classgrad.theory import Bound, NoiseStudy, RunAnalysis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_IN_LEGEND = 12


def draw_analysis(found: RunAnalysis, path: Path) -> Path:
    """Draw predicted and measured changes, margins and norms below their bounds against the step."""
    figure = _figure(7.0, 8.4)
    changes, margins, norms = figure.subplots(3, 1, sharex=True)
    steps = found.run.steps
    names = found.run.classes
    widths = np.linspace(2.8, 1.2, len(names))  # so that equal curves, as the margins of two classes are, both show
    for label, (name, colour) in enumerate(zip(names, _colours(len(names)), strict=True)):
        style = {"color": colour, "lw": widths[label]}
        changes.plot(steps, found.measured[:, label], label=_short(name), **style)
        changes.plot(steps, found.predicted[:, label], color=colour, ls="none", marker=".", ms=4, alpha=0.7)
        margins.plot(steps, found.margin[:, label], **style)
        norms.plot(steps, found.run.norms[:, label], **style)
    if found.bounds:
        _draw_bound(norms, found.bounds[0], steps, len(names))
    _zero(changes, found.measured.numpy())
    _zero(margins, found.margin.numpy())
    changes.set_ylabel("change of $f^{(l)}$ in the step\n(line measured, dots predicted)")
    margins.set_ylabel("margin of the condition\n(below 0: class gets worse)")
    norms.set_ylabel(_norms_label(found))
    norms.set_yscale("log")
    norms.set_xlabel("step")
    norms.set_xscale("symlog", linthresh=1)
    norms.set_xlim(left=0)
    _legend(changes, len(names))
    changes.set_title(f"{found.run.meta.get('algorithm')} on {found.run.meta.get('data')}", loc="left")
    return _save(figure, path)


def draw_noise(study: NoiseStudy, classes: Sequence[str], title: str, path: Path) -> Path:
    """Draw projections and the ratio of attenuations against the batch size."""
    figure = _figure(9.6, 4.2)
    projections, ratios = figure.subplots(1, 2)
    for label, (name, colour) in enumerate(zip(classes, _colours(len(classes)), strict=True)):
        projections.errorbar(
            study.batch_sizes,
            study.measured[:, label],
            yerr=study.error[:, label],
            color=colour,
            marker="o",
            ms=4,
            ls="none",
            label=_short(name),
        )
        projections.plot(study.batch_sizes, study.predicted[:, label], color=colour, ls="--", lw=1)
        projections.plot(study.batch_sizes, study.saturating[:, label], color=colour, lw=1.2)
        if label:
            sizes = study.batch_sizes
            ratios.plot(sizes, study.attenuation_ratio[:, label], color=colour, marker="o", ms=4, ls="none")
            ratios.plot(sizes, study.predicted_ratio[:, label], color=colour, ls="--", lw=1)
            ratios.plot(sizes, study.imbalance[:, label], color=colour, ls=":", lw=1.4)
    lowest = min(float(study.measured.min()), float(study.saturating.min()))
    projections.set_ylim(lowest - 0.05 * (1 - lowest), 1 + 0.05 * (1 - lowest))
    projections.set_xlabel("batch size")
    projections.set_ylabel("projection on the full-batch direction")
    ratios.set_xlabel("batch size")
    ratios.set_ylabel("attenuation over that of the majority")
    ratios.set_yscale("log", base=2)
    for axes in (projections, ratios):
        axes.set_xscale("log", base=2)
    for axis in (projections.xaxis, ratios.xaxis, ratios.yaxis):
        axis.set_major_formatter("{x:g}")
    _legend(projections, len(classes))
    projections.set_title("dots: random batches; dashes: Eq. proj; lines: all orders", loc="left", fontsize=8)
    ratios.set_title(
        "dots: random batches; dashes: Eq. proj; dotted: $\\tilde n_0/\\tilde n_l$", loc="left", fontsize=8
    )
    figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    return _save(figure, path)


def _draw_bound(axes: Axes, bound: Bound, steps: NDArray[np.int64], classes: int) -> None:
    """Draw the right side of a bound, which is about the smallest norm so far, where the assumptions are met."""
    right = np.where(bound.met.numpy(), bound.right.expand_as(bound.left).numpy(), np.nan)
    power = 2 if bound.name.startswith("gd") else 1
    for label, colour in enumerate(_colours(classes)):
        axes.plot(steps[1:], right[:, label] ** (1 / power), color=colour, ls="--", lw=1)


def _norms_label(found: RunAnalysis) -> str:
    if not any(bool(bound.met.any()) for bound in found.bounds[:1]):
        return "$\\|g_l\\|$"
    return f"$\\|g_l\\|$ (line) and the bound\n'{found.bounds[0].name}' on its smallest (dashes)"


def _zero(axes: Axes, values: NDArray[Any]) -> None:
    """Mark zero and make both signs readable over many orders of magnitude."""
    sizes = np.abs(values[np.isfinite(values) & (values != 0)])
    axes.axhline(0, color="black", lw=0.8)
    if sizes.size:
        axes.set_yscale("symlog", linthresh=10.0 ** np.floor(np.log10(np.quantile(sizes, 0.2))))


def _legend(axes: Axes, classes: int) -> None:
    if classes <= MOST_IN_LEGEND:
        axes.legend(fontsize=8, frameon=False, ncols=1 if classes <= 4 else 2)


def _short(name: str) -> str:
    return name if len(name) <= 24 else f"{name[:23]}…"


def _colours(count: int) -> list[Any]:
    """One colour per class, dark for the majority."""
    from matplotlib import colormaps

    return [colormaps["plasma"](place) for place in np.linspace(0, 0.82, count)]


def _figure(width: float, height: float) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise InputError("Figures need matplotlib: pip install 'classgrad[lab]'") from error
    return Figure(figsize=(width, height), layout="constrained")


def _save(figure: Figure, path: Path) -> Path:
    kind = path.suffix.removeprefix(".").lower()
    if kind not in ("png", "pdf", "svg"):
        raise InputError(f"--out must end in .png, .pdf or .svg, or be a folder; found {path}")
    write_atomically(path, lambda part: figure.savefig(part, format=kind, dpi=150))
    return path

"""Draw the figures of docs/theory.md: ``python docs/figures/theory_figures.py`` writes them beside this file."""

from __future__ import annotations

import math
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib
import numpy as np
import torch
from PIL import Image

from classgrad.cli import main
from classgrad.data import DeviceData, load
from classgrad.dynamics import predicted_change
from classgrad.models import build
from classgrad.theory import (
    Quadratics,
    Ramps,
    RuleName,
    Trajectory,
    descend,
    example_gradients,
    gd_bound,
    gd_margin,
    gd_steps,
    least_squares,
    logistic,
    noise_study,
    pcngd_bound,
    pcngd_multiclass_bound,
    pl_bound,
    pl_steps,
    rule_weights,
)
from classgrad.training import RunSpec, train

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

HERE = Path(__file__).parent
MAJORITY, MINORITY, GREY = "#15226e", "#d67d00", "#777777"
f64 = torch.float64


def save(figure: Figure, name: str) -> None:
    """Write a figure beside this file."""
    figure.savefig(HERE / f"theory-{name}.png", dpi=110)
    plt.close(figure)


def conditions() -> None:
    """Which angles are allowed, against the imbalance and against the number of classes."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.6, 3.4), layout="constrained", sharey=True)
    ratio = np.geomspace(1, 100, 200)
    allowed = np.degrees(np.arccos(-1 / ratio))
    left.fill_between(ratio, 0, allowed, color=MAJORITY, alpha=0.15, lw=0)
    left.plot(ratio, allowed, color=MAJORITY, label="GD: $1 + C_t \\cos\\alpha = 0$")
    left.axhline(180, color=MINORITY, label="PCNGD: $\\cos\\alpha = -1$")
    left.set(
        xscale="log", xlabel="$C_t$ of the minority, about the imbalance", ylabel="angle of the class gradients (°)"
    )
    left.set_title("two classes: below the line the minority gets better", loc="left", fontsize=9)
    classes = np.arange(2, 101)
    worst = np.degrees(np.arccos(-1 / (classes - 1)))
    right.fill_between(classes, 0, worst, color=MINORITY, alpha=0.15, lw=0)
    right.plot(classes, worst, color=MINORITY, label="PCNGD, any imbalance; GD, balanced")
    for rho, style in ((10, "--"), (100, ":")):
        angle = np.degrees(np.arccos(-1 / ((classes - 1) * rho)))
        right.plot(classes, angle, color=MAJORITY, ls=style, label=f"GD, {rho} to 1")
    right.set(xscale="log", xlabel="number of classes $L$")
    right.set_title("worst case: one class against all the others", loc="left", fontsize=9)
    for axes in (left, right):
        axes.legend(fontsize=8, frameon=False, loc="lower left")
        axes.set_ylim(60, 188)
    save(figure, "conditions")


def drop() -> None:
    """Show the minority initial drop on logistic regression, predicted at every step."""
    problem = logistic()
    figure, axes = plt.subplots(2, 2, figsize=(8.6, 4.8), layout="constrained", sharex=True)
    runs = {"GD": descend(problem, "gd", 120, 0.05), "PCNGD": descend(problem, "pcngd", 120, 0.02)}
    for (name, path), column in zip(runs.items(), axes.T, strict=True):
        losses = path.losses / path.losses[0]
        rule: RuleName = "gd" if name == "GD" else "pcngd"
        margin = gd_margin(path.gram) if rule == "gd" else None
        for label, colour, text in ((0, MAJORITY, "majority (140)"), (1, MINORITY, "minority (20)")):
            column[0].plot(losses[:, label], color=colour, label=text)
        predicted = _first_order(path, rule)
        for label, colour in ((0, MAJORITY), (1, MINORITY)):
            column[1].plot(path.losses.diff(dim=0)[:, label], color=colour)
            column[1].plot(predicted[:, label], color=colour, ls="none", marker=".", ms=3)
        if margin is not None:
            worse = (margin[:, 1] < 0).nonzero().max()
            for axis in column:
                axis.axvspan(0, float(worse) + 0.5, color=MINORITY, alpha=0.15, lw=0)
            column[0].text(
                float(worse) + 2, 1.25, "← $1 + C_t\\cos\\alpha < 0$ for the minority", fontsize=8, va="center"
            )
        column[0].axhline(1, color=GREY, lw=0.6)
        column[1].axhline(0, color=GREY, lw=0.6)
        column[0].set_title(name, loc="left")
        column[1].set_yscale("symlog", linthresh=1e-4)
        column[1].set_xlabel("step")
    axes[0, 0].set_ylabel("$f^{(l)}$ over its start")
    axes[1, 0].set_ylabel("change of $f^{(l)}$\n(dots: $-\\eta (Kw)_l$)")
    axes[0, 1].legend(frameon=False, fontsize=8)
    for axis in axes[0]:
        axis.set_ylim(0, 1.35)
    save(figure, "drop")


def _first_order(path: Trajectory, rule: RuleName) -> torch.Tensor:
    return predicted_change(path.gram, rule_weights(path.gram, rule), path.lr)


def ratios() -> None:
    """Left over right of the bounds on random problems: above 1 a statement is false."""
    random = torch.Generator().manual_seed(0)

    def problems(classes: int, count: int = 4000) -> list:
        shared = torch.randn(count, 1, 3, generator=random, dtype=f64)
        vectors = shared + 0.4 * torch.randn(count, classes, 3, generator=random, dtype=f64)
        sizes = torch.randn(count, classes, generator=random, dtype=f64).mul(0.3).exp()
        start = torch.zeros(count, 3, dtype=f64)
        offsets = 3 * torch.rand(count, classes, generator=random, dtype=f64)
        return [Quadratics(sizes, vectors, start), Ramps(vectors, offsets, start)]

    def ratios_of(found: list) -> np.ndarray:
        return torch.cat([bound.ratio[bound.met] for bound in found]).numpy()

    gd: dict[str, list] = {"printed": [], "corrected": []}
    for problem in problems(2):
        path = descend(problem, "gd", 3, gd_steps(problem.constants.smoothness.value, 1e6))
        for statement, found in gd.items():
            found.append(gd_bound(path, problem.constants, cap=math.inf, statement=statement))
    pcn: dict[str, list] = {"printed": [], "corrected": [], "sharp": []}
    for problem in problems(4):
        path = descend(problem, "pcngd", 8, 0.1)
        for statement, found in pcn.items():
            found.append(pcngd_multiclass_bound(path, problem.constants, statement=statement))
    figure, axes = plt.subplots(1, 2, figsize=(8.6, 3.2), layout="constrained")
    colours = {"printed": "#b83280", "corrected": MAJORITY, "sharp": "#3a9bd9"}
    for axis, table, title in ((axes[0], gd, "Th. 1 (GD)"), (axes[1], pcn, "PCNGD, four classes")):
        for statement, found in table.items():
            values = ratios_of(found)
            edges = np.linspace(0, max(2.05, values.max()), 70)
            axis.hist(values, edges, histtype="step", color=colours[statement], label=statement, log=True)
        axis.axvline(1, color="black", lw=0.8)
        axis.set(xlabel="left side / right side", title=title)
        axis.legend(frameon=False, fontsize=8)
    axes[0].set_ylabel("problems × classes × horizons")
    save(figure, "ratios")


def multiclass() -> None:
    """Show the printed multi-class theorem fail: its bound goes to 0 while the loss of class 0 only grows."""
    steps, back = 400, [-math.sqrt(0.5), math.sqrt(0.5)]
    problem = Ramps(
        torch.tensor([[1.0, 0.0], back, back], dtype=f64),
        torch.tensor([1.0, 500.0, 500.0], dtype=f64),
        torch.zeros(2, dtype=f64),
    )
    path = descend(problem, "pcngd", steps, 0.025)
    bound = pcngd_multiclass_bound(path, problem.constants, statement="printed")
    horizon = np.arange(1, steps + 1)
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.6, 3.2), layout="constrained")
    left.plot(path.losses[:, 0], color=MINORITY)
    left.set(xlabel="step", ylabel="$f^{(0)}$", title="loss of class 0 under PCNGD, $\\cos\\alpha^{(0)} = -0.71$")
    right.plot(horizon, bound.left[:, 0], color=MINORITY, label="$\\min_s \\|g_0(x_s)\\|$")
    right.plot(horizon, bound.right[:, 0], color="#b83280", ls="--", label="printed bound")
    right.set(xscale="log", yscale="log", xlabel="horizon $\\tilde T$", title="its gradient and the printed bound")
    right.legend(frameon=False, fontsize=8)
    save(figure, "multiclass")


def rates() -> None:
    """Bounds above runs: Th. 2 with its sharp form, and PCNGD under the PL condition."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.6, 3.4), layout="constrained")
    problem, steps = logistic(), 1000
    path = descend(problem, "pcngd", steps, 0.02)
    horizon = np.arange(1, steps + 1)
    left.plot(horizon, pcngd_bound(path, problem.constants).left[:, 1], color=MINORITY, label="$\\min_s\\|g_1(x_s)\\|$")
    for statement, style in (("corrected", "--"), ("sharp", ":")):
        bound = pcngd_bound(path, problem.constants, statement=statement)
        left.plot(horizon, bound.right[:, 1], color=MAJORITY, ls=style, label=f"Th. 2, {statement}")
    left.set(xscale="log", yscale="log", xlabel="horizon $\\tilde T$", title="PCNGD on logistic regression, minority")
    problem, steps, omega = least_squares(counts=(3, 2)), 20000, 0.3
    path = descend(
        problem, "pcngd", steps, pl_steps(steps, problem.losses(problem.start), problem.constants, problem.pl, omega)
    )
    bound = pl_bound(path, problem.constants, problem.pl, omega)
    horizon = np.arange(1, steps + 1)
    for label, colour in ((0, MAJORITY), (1, MINORITY)):
        worst = np.maximum.accumulate(bound.left[:, label].numpy()[::-1])[::-1]
        right.plot(horizon, worst, color=colour, label=f"class {label}, from $\\tilde T$ on")
    right.plot(horizon, bound.right[:, 0], color=GREY, ls="--", label="bound, $\\propto 1/\\tilde T^2$")
    right.set(xscale="log", yscale="log", xlabel="horizon $\\tilde T$", title="$f^{(l)} - f^{(l)}_*$ under PL")
    for axis in (left, right):
        axis.legend(frameon=False, fontsize=8)
    save(figure, "rates")


def noise() -> None:
    """Projections of batches of digits-bi20 at the initialization of a small network."""
    data = load("digits-bi20")
    random = torch.Generator().manual_seed(0)
    model = build("mlp", 2, data.preprocessing.shape, generator=random).double()
    served = DeviceData(data.train, mean=data.mean, std=data.std, dtype=f64)
    members = [(data.train.y == label).nonzero().squeeze(-1) for label in range(2)]
    classes = [example_gradients(model, *served.batch(indices)) for indices in members]
    study = noise_study(classes, [21, 42, 84, 168, 336, 504], draws=400, generator=random)
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.6, 3.4), layout="constrained")
    for label, colour, name in ((0, MAJORITY, "majority (600)"), (1, MINORITY, "minority (30)")):
        error = study.error[:, label]
        left.errorbar(study.batch_sizes, study.measured[:, label], error, color=colour, fmt="o", ms=4, label=name)
        left.plot(study.batch_sizes, study.predicted[:, label], color=colour, ls="--", lw=1)
        left.plot(study.batch_sizes, study.saturating[:, label], color=colour, lw=1)
    left.set(xscale="log", xlabel="batch size", ylabel="projection on the full-batch direction")
    left.set_title("dots: random batches, dashes: Eq. proj, lines: all orders", loc="left", fontsize=8)
    left.legend(frameon=False, fontsize=8)
    right.plot(study.batch_sizes, study.attenuation_ratio[:, 1], "o", color=MINORITY, ms=4, label="random batches")
    right.plot(study.batch_sizes, study.predicted_ratio[:, 1], "--", color=MINORITY, lw=1, label="Eq. proj")
    right.plot(study.batch_sizes, study.imbalance[:, 1], ":", color=GREY, label="$\\tilde n_0/\\tilde n_1$")
    right.set(xscale="log", xlabel="batch size", ylabel="attenuation, minority over majority", ylim=(0, None))
    right.legend(frameon=False, fontsize=8)
    for axis in (left, right):
        axis.set_xticks(study.batch_sizes, [str(size) for size in study.batch_sizes])
        axis.minorticks_off()
    save(figure, "noise")


def recorded() -> None:
    """Apply ``classgrad theory run`` to PCNGD on ten classes of digits."""
    spec = RunSpec("digits-mul10", "pcngd", lr=0.02, steps=80, grid="all", model="simple_cnn", device="cpu")
    with TemporaryDirectory() as folder:
        train(spec, folder)
        drawn = HERE / "theory-run.png"
        assert main(["theory", "run", folder, "--out", str(drawn), "--quiet"]) == 0
    Image.open(drawn).quantize(64).save(drawn, optimize=True)


if __name__ == "__main__":
    for draw in (conditions, drop, ratios, multiclass, rates, noise, recorded):
        draw()

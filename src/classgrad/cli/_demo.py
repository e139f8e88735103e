"""``classgrad demo``: what imbalance does and what cures it, in about a minute."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from classgrad.cli._console import Json, Output, Quiet
from classgrad.cli._experiment import Experiment, run_experiment, show_results
from classgrad.cli._settings import Resume, Workers
from classgrad.data import load
from classgrad.dynamics import Run, Summary, summarize
from classgrad.training import RunSpec

Out = Annotated[Path, typer.Option(help="Folder for records, report and figures; an earlier demo there is replaced.")]

RATES: dict[str, dict[str, float]] = {
    "digits-bi20": {
        "gd": 0.1,
        "pcngd": 0.05,
        "sgd": 0.1,
        "pcnsgd": 0.02,
        "pcnsgd+r": 0.02,
        "sgd+o": 0.1,
        "pcnsgd+o": 0.05,
    },
    "digits-mul10": {
        "gd": 0.1,
        "pcngd": 0.05,
        "sgd": 0.1,
        "pcnsgd": 0.02,
        "pcnsgd+r": 0.02,
        "sgd+o": 0.1,
        "pcnsgd+o": 0.05,
    },
}
"""Learning rates, each the best of the same five for its algorithm by validation recall (benchmarks/demo_rates.py)."""

STEPS = {"digits-bi20": 400, "digits-mul10": 400}
SEEDS = (0, 1, 2)


def demo(
    out: Out = Path("classgrad-demo"),
    resume: Resume = False,
    workers: Workers = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train the embedded digits, 20:1 and long-tailed, with the paper's seven algorithms, and report what happens."""
    output = Output(json, quiet)
    specs = [demo_spec(data, algorithm, seed) for data in RATES for algorithm in RATES[data] for seed in SEEDS]
    classes = {data: load(data).classes for data in RATES}
    experiment = Experiment(specs, out, workers=workers, resume=resume, overwrite=not resume)
    runs = run_experiment(experiment, output, classes)
    show_results(runs, out, output, title="Class imbalance on the embedded digits", sentences=findings(runs))


def demo_spec(data: str, algorithm: str, seed: int, lr: float | None = None) -> RunSpec:
    """Return the settings of one of the demo's runs, at another rate if one is given."""
    return RunSpec(
        data=data,
        algorithm=algorithm,
        lr=RATES[data][algorithm] if lr is None else lr,
        steps=STEPS[data],
        model="mlp",
        model_options={"hidden": [64]},
        batch_size=64,
        seed=seed,
        grid="log:30",
        device="cpu",
    )


def findings(runs: Sequence[Run]) -> tuple[str, str]:
    """Say in two sentences what the runs show, whatever it is."""
    summaries = {(data, name): _summary(runs, data, name) for data in RATES for name in RATES[data]}
    harm = (
        f"The minority initial drop, in which the minority gets worse than it was before training, is seen in "
        f"{_drops(summaries, ('gd', 'sgd'))} plain runs (gd, sgd), {_drops(summaries, ('pcnsgd',))} of pcnsgd and "
        f"{_drops(summaries, ('pcngd', 'pcnsgd+r', 'sgd+o', 'pcnsgd+o'))} with the class directions balanced "
        "(pcngd, pcnsgd+r, sgd+o, pcnsgd+o)."
    )
    cure = "; ".join(
        f"on {data} a macro recall of {summaries[data, 'gd'].tau.threshold:.0%} takes "
        f"{_pair(summaries, data, 'gd', 'pcngd')}, {_pair(summaries, data, 'sgd', 'pcnsgd+o')}"
        for data in RATES
    )
    return harm, f"{cure[0].upper()}{cure[1:]}."


def _summary(runs: Sequence[Run], data: str, algorithm: str) -> Summary:
    return summarize([run for run in runs if run.meta["data"] == data and run.meta["algorithm"] == algorithm])


def _drops(summaries: dict[tuple[str, str], Summary], names: Sequence[str]) -> str:
    chosen = [summary for (_, name), summary in summaries.items() if name in names]
    judged = [summary for summary in chosen if not math.isnan(summary.mid_fraction)]
    seen = sum(round(summary.mid_fraction * len(summary.seeds)) for summary in judged)
    return f"{seen} of {sum(len(summary.seeds) for summary in chosen)}"


def _pair(summaries: dict[tuple[str, str], Summary], data: str, plain: str, cured: str) -> str:
    return f"{plain} {_steps(summaries[data, plain])} and {cured} {_steps(summaries[data, cured])}"


def _steps(summary: Summary) -> str:
    return f"{summary.tau.value:.0f} steps" if math.isfinite(summary.tau.value) else "more steps than it was given"

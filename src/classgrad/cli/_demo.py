"""``classgrad demo``: what imbalance does and what cures it, in about a minute."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from classgrad.cli._console import Json, Output, Quiet
from classgrad.cli._experiment import Experiment, run_experiment, show_results
from classgrad.cli._settings import Resume, Workers
from classgrad.data import load
from classgrad.training import RunSpec

Out = Annotated[Path, typer.Option(help="Folder for records, report and figures; an earlier demo there is replaced.")]

RATES: dict[str, dict[str, float]] = {
    "digits-bi20": {
        "gd": 0.3,
        "pcngd": 1.0,
        "sgd": 0.1,
        "pcnsgd": 1.0,
        "pcnsgd+r": 0.3,
        "sgd+o": 0.03,
        "pcnsgd+o": 0.3,
    },
    "digits-mul10": {
        "gd": 0.3,
        "pcngd": 0.3,
        "sgd": 0.3,
        "pcnsgd": 0.3,
        "pcnsgd+r": 0.03,
        "sgd+o": 0.1,
        "pcnsgd+o": 0.3,
    },
}
"""Learning rates, picked from the same five for every algorithm by validation recall (benchmarks/demo_rates.py)."""

STEPS = {"digits-bi20": 100, "digits-mul10": 60}
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
    show_results(runs, out, output, title="Class imbalance on the embedded digits", kinds=("png",))


def demo_spec(data: str, algorithm: str, seed: int, lr: float | None = None) -> RunSpec:
    """Return the settings of one of the demo's runs, at another rate if one is given."""
    return RunSpec(
        data=data,
        algorithm=algorithm,
        lr=RATES[data][algorithm] if lr is None else lr,
        steps=STEPS[data],
        model="simple_cnn",
        batch_size=64,
        seed=seed,
        grid="log:14",
        device="cpu",
    )

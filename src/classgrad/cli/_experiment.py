"""What training subcommands have in common: run the jobs, keep the models, print and write the results."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from classgrad.cli._console import Output
from classgrad.cli._live import Live
from classgrad.cli._model_file import save_model
from classgrad.cli._settings import TrainingOptions
from classgrad.cli._source import file_name
from classgrad.data import Dataset
from classgrad.dynamics import Run
from classgrad.training import MODEL_FILE, Interrupted, Job, RunSpec, load_data, load_trained, train_all

if TYPE_CHECKING:
    from classgrad.report import ResultRow

_RUN_FACTS = ("data", "algorithm", "seed", "status", "message")


@dataclass(frozen=True)
class Experiment:
    """Runs to make, and the folder they go to."""

    specs: Sequence[RunSpec]
    out: Path
    data_dir: Path | None = None
    workers: int | None = None
    together: int = 1
    resume: bool = False
    overwrite: bool = False
    tensorboard: bool = False

    @property
    def jobs(self) -> list[Job]:
        """The runs with their folders: data set and algorithm where there are several, and seed."""
        varied = [name for name in ("data", "algorithm") if len({getattr(spec, name) for spec in self.specs}) > 1]
        return [
            Job(spec, self.out.joinpath(*(file_name(getattr(spec, name)) for name in varied), f"seed-{spec.seed}"))
            for spec in self.specs
        ]


def run_experiment(experiment: Experiment, output: Output, classes: Mapping[str, Sequence[str]]) -> list[Run]:
    """Train everything with a live display and keep the models; ``classes`` are the class names of each data set."""
    jobs = experiment.jobs
    logs = experiment.out / "tensorboard" if experiment.tensorboard else None
    try:
        with Live(output, jobs, classes, logs) as live:
            runs = train_all(
                jobs,
                workers=experiment.workers,
                together=experiment.together,
                data_dir=experiment.data_dir,
                resume=experiment.resume,
                overwrite=experiment.overwrite,
                report=live,
            )
    except Interrupted as interruption:
        print(f"classgrad: {interruption} (--resume)", file=sys.stderr)
        raise
    for job, run in zip(jobs, runs, strict=True):
        if job.out_dir is not None and run.meta["status"] == "finished":
            save_model(load_trained(job.out_dir), job.out_dir / MODEL_FILE)
    return runs


def show_results(
    runs: Sequence[Run], out: Path, output: Output, *, title: str, kinds: Sequence[str] = ("png", "pdf")
) -> None:
    """Print the table and what it says, write the report and ``kinds`` of figures under ``out``, say where all is."""
    from classgrad.report import findings, result_table, write_report

    rows = result_table(runs)
    grouped = groupby(rows, key=lambda row: row.data)
    sentences = [f"{data}: {' '.join(findings(list(group)))}" for data, group in grouped]
    cells = [row.cells() for row in rows]
    output.table(list(cells[0]), [list(line.values()) for line in cells], title=title)
    for run in runs:
        if run.meta.get("message"):
            output.say(f"{run.meta.get('algorithm')}, seed {run.meta.get('seed')}: {run.meta['message']}")
    for sentence in (*_busy(runs), *sentences):
        output.say(sentence)
    paths = write_report(runs, out, title=title, figures=kinds)
    output.say(f"report   {paths[0]}")
    figures = [path for path in paths if path.suffix == ".png"]
    if figures:
        also = " (and as PDF)" if "pdf" in kinds else ""
        output.say(f"figures  {figures[0].parent}: {', '.join(path.name for path in figures)}{also}")
    output.document(
        {
            "results": [_facts(row) for row in rows],
            "sentences": sentences,
            "runs": [{key: run.meta.get(key) for key in _RUN_FACTS} for run in runs],
            "out": str(out),
            "files": [str(path) for path in paths],
        }
    )


def _busy(runs: Sequence[Run]) -> list[str]:
    """Say how busy updates kept the GPU, where they were replayed as CUDA graphs."""
    timed = [run.meta for run in runs if run.meta.get("seconds_updates")]
    if not timed:
        return []
    share = sum(meta["seconds_busy"] for meta in timed) / sum(meta["seconds_updates"] for meta in timed)
    return [f"GPU busy {share:.0%} of the time between measuring points (one replayed step in 64 timed)."]


def _facts(row: ResultRow) -> dict[str, Any]:
    summary = None if row.summary is None else row.summary.to_json()
    return {"data": row.data, "algorithm": row.algorithm, "summary": summary, "notes": row.notes}


def train_algorithms(
    algorithms: Sequence[str], source: str, seeds: Sequence[int], options: TrainingOptions, *, place: str
) -> None:
    """Train several algorithms alike on one data set, print and write the results, by default to runs/DATA/place."""
    output, settings = options.output, options.settings()
    first = RunSpec(data=source, algorithm=algorithms[0], **settings)  # bad settings are found before data is read
    dataset = load_data(first, data_dir=options.data_dir, progress=output.talks)
    settings.setdefault("model", default_model(dataset))
    folder = options.out or Path("runs") / file_name(source) / place
    experiment = Experiment(
        [RunSpec(data=source, algorithm=name, seed=seed, **settings) for name in algorithms for seed in seeds],
        folder,
        options.data_dir,
        options.workers,
        options.together,
        options.resume,
        options.overwrite,
        options.tensorboard,
    )
    runs = run_experiment(experiment, output, {source: dataset.classes})
    show_results(runs, folder, output, title=f"{dataset.name}, {dataset.rho:.3g}:1")
    for job in experiment.jobs:
        output.say(f"run      {job.out_dir}")


def default_model(dataset: Dataset) -> str:
    """Name the network that is taken where none is asked for."""
    return "simple_cnn" if dataset.preprocessing.images and min(dataset.preprocessing.shape[1:]) >= 4 else "mlp"

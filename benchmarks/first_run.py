"""A first run on the paper's data: simple_cnn on Bi7a, the seven algorithms, several seeds, full iteration counts.

    python benchmarks/first_run.py grid   --out DIR --data-dir CIFAR   learning rates, picked on the validation split
    python benchmarks/first_run.py runs   --out DIR --data-dir CIFAR   all seeds at the picked rates
    python benchmarks/first_run.py times  --out DIR --data-dir CIFAR   time per iteration, one run at a time
    python benchmarks/first_run.py pack   --out DIR --packed FILE      the records of all stages as one tar file
    python benchmarks/first_run.py tables --packed FILE [--figures DIR]

    [--algorithms gd,pcngd] [--protocols paper,authors] [--seeds 5] [--rates 0.01,0.1] [--batch-size 128]
    [--scale 1.0] [--grid-scale 1.0] [--workers 8] [--budget 240] [--device auto] [--precision float32] [--compile]
    [--channels-last]

Every run has a folder under --out, and one that is finished is not made again. --budget ends the stage in time: runs
under way are saved and go on with the same command. --scale shortens all runs, to try the stages out, --grid-scale
those of the search for rates. --compile is for the full-batch algorithms.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

import numpy as np
import torch
from first_run_tables import pack, show_tables, unpacked

from classgrad.dynamics import Run, load_run
from classgrad.training import SEVEN, Interrupted, Job, Progress, RunSpec, algorithm, train, train_all

DATA, MODEL = "bi7a", "simple_cnn"
STEPS = {"full": 3_000, "stochastic": 10_000}
AUTHORS = ("sgd+o", "pcnsgd+o")
GRID_SEED = 100  # not one of those reported
TIMED_STEPS = {"full": 100, "stochastic": 500}
WARM_UP = 20

RATES = {
    "gd": (0.01, 0.03, 0.1, 0.3),
    "pcngd": (0.03, 0.1, 0.3, 1.0),
    "sgd": (0.01, 0.03, 0.1, 0.3),
    "pcnsgd": (0.03, 0.1, 0.3, 1.0),
    "pcnsgd+r": (0.003, 0.01, 0.03, 0.1),
    "sgd+o": (0.01, 0.03, 0.1, 0.3),
    "pcnsgd+o": (0.03, 0.1, 0.3, 1.0),
}
"""The first rates tried; where the best is at an end, the next one beyond it is tried too."""
LADDER = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)

GUESS = {"gd": 15.0, "pcngd": 15.0, "sgd": 4.0, "pcnsgd": 8.0, "pcnsgd+r": 20.0, "sgd+o": 4.0, "pcnsgd+o": 8.0}
"""Seconds of a full run alone on an H200, for the estimate before there are any."""


class OutOfTime(Exception):
    """The stage's budget is spent."""


@dataclass(frozen=True)
class Setting:
    """One line of the table: an algorithm in a protocol."""

    protocol: str
    algorithm: str

    @property
    def name(self) -> str:
        return f"{self.protocol}/{self.algorithm}"

    @property
    def kind(self) -> str:
        return "full" if algorithm(self.algorithm).full_batch else "stochastic"


def settings(given: argparse.Namespace) -> list[Setting]:
    """Give the lines asked for: the longest runs first, so that the last ones to end are short."""
    chosen = [name for name in SEVEN if name in given.algorithms.split(",")]
    lines = [Setting("paper", name) for name in chosen] + [Setting("authors", n) for n in AUTHORS if n in chosen]
    lines = [line for line in lines if line.protocol in given.protocols.split(",")]
    return sorted(lines, key=lambda line: -GUESS[line.algorithm])


def spec_of(line: Setting, given: argparse.Namespace, lr: float, seed: int, scale: float = 1.0) -> RunSpec:
    return RunSpec(
        data=DATA,
        algorithm=line.algorithm,
        protocol=line.protocol,
        model=MODEL,
        lr=lr,
        steps=max(2, round(scale * given.scale * STEPS[line.kind])),
        batch_size=given.batch_size,
        seed=seed,
        gradients=False,
        device=given.device,
        precision=given.precision,
        compile=given.compile and line.kind == "full",
        channels_last=given.channels_last,
    )


def job_of(line: Setting, given: argparse.Namespace, stage: str, lr: float, seed: int) -> Job:
    folder = given.out / stage / line.protocol / line.algorithm / f"lr-{lr:g}" / f"seed-{seed}"
    return Job(spec_of(line, given, lr, seed, given.grid_scale if stage == "grid" else 1.0), folder)


def finished(job: Job) -> Run | None:
    """Give the record of a run that is done, diverged or not."""
    assert job.out_dir is not None
    path = job.out_dir / "run.npz"
    run = load_run(path) if path.exists() else None
    return None if run is None or run.meta["status"] == "interrupted" else run


def carry_out(jobs: Sequence[Job], given: argparse.Namespace) -> None:
    """Make the runs that are not finished, several at a time, until the budget ends."""
    left = [job for job in jobs if finished(job) is None]
    alone = sum(given.scale * GUESS[job.spec.algorithm] for job in left)
    print(
        f"{len(left)} of {len(jobs)} runs to make: on an H200 about {alone:.0f} s one after another,"
        f" from {alone / given.workers:.0f} s on with {given.workers} at a time; {given.ends - time.monotonic():.0f} s"
        " of the budget are left",
        flush=True,
    )
    if not left:
        return
    done = [0]

    def report(number: int, progress: Progress) -> None:
        if progress.step == progress.steps and progress.point is not None:
            done[0] += 1
            job = left[number]
            taken = time.monotonic() - given.began
            print(f"{taken:6.0f} s  {done[0]:3d} of {len(left)}  {job.out_dir}", flush=True)
        if time.monotonic() > given.ends:
            raise OutOfTime

    train_all(left, workers=given.workers, data_dir=given.data_dir, resume=True, report=report)


def score(run: Run) -> float:
    """Give the highest macro recall on the validation split, 0 for a run that diverged."""
    return float(np.nanmax(run.macro_recall("validation"))) if run.meta["status"] == "finished" else 0.0


def scores_of(line: Setting, rates: Sequence[float], given: argparse.Namespace) -> dict[float, float]:
    """Score the rates whose runs are all finished, averaged over the seeds."""
    records = {lr: [finished(job) for job in grid_jobs(line, lr, given)] for lr in rates}
    return {lr: float(np.mean([score(run) for run in found if run])) for lr, found in records.items() if all(found)}


def grid_jobs(line: Setting, lr: float, given: argparse.Namespace) -> list[Job]:
    return [job_of(line, given, "grid", lr, GRID_SEED + n) for n in range(given.grid_seeds)]


def best_of(scores: dict[float, float]) -> float:
    """Give the rate with the highest score, the smallest if several share it."""
    return min(lr for lr, value in scores.items() if value == max(scores.values()))


def beyond(scores: dict[float, float]) -> float | None:
    """Give the next rate past the end of those tried, where the best one is at an end."""
    best = best_of(scores)
    if best == min(scores):
        return max((rate for rate in LADDER if rate < best), default=None)
    if best == max(scores):
        return min((rate for rate in LADDER if rate > best), default=None)
    return None


def grid(given: argparse.Namespace) -> None:
    """Try the rates, and further ones where the best is at an end, and write down the best."""
    named = None if given.rates is None else tuple(float(rate) for rate in given.rates.split(","))
    tried = {line: list(named or RATES[line.algorithm]) for line in settings(given)}
    for _ in range(1 + given.extensions):
        # one rate of every line before the next, so that a short budget leaves fewer rates of all
        columns = zip_longest(*([(line, rate) for rate in rates] for line, rates in tried.items()))
        try:
            carry_out(
                [job for column in columns for found in column if found for job in grid_jobs(*found, given)], given
            )
        finally:
            scores = {line: scores_of(line, rates, given) for line, rates in tried.items()}
            write_rates({line: found for line, found in scores.items() if found}, given)
        more = {line: rate for line, found in scores.items() if (rate := beyond(found)) is not None}
        if not more:
            return
        for line, rate in more.items():
            tried[line].append(rate)
    print("the best rate is still at an end of those tried:", ", ".join(line.name for line in more))


def write_rates(scores: dict[Setting, dict[float, float]], given: argparse.Namespace) -> None:
    path = given.out / "rates.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    for line, found in scores.items():
        known[line.name] = {"lr": best_of(found), "scores": {f"{lr:g}": found[lr] for lr in sorted(found)}}
    path.write_text(json.dumps(known, indent=1))


def picked(given: argparse.Namespace) -> dict[str, float]:
    path = given.out / "rates.json"
    if not path.exists():
        raise SystemExit(f"{path} is not there: run the stage `grid` first")
    return {name: found["lr"] for name, found in json.loads(path.read_text()).items()}


def runs(given: argparse.Namespace) -> None:
    """All seeds of all lines; one seed of each before the next, so that a short budget leaves fewer seeds of all."""
    rates = picked(given)
    lines = [line for line in settings(given) if line.name in rates]
    carry_out(
        [job_of(line, given, "runs", rates[line.name], seed) for seed in range(given.seeds) for line in lines], given
    )


def times(given: argparse.Namespace) -> None:
    """Milliseconds of an iteration of every line, each alone on the machine, after a few to warm up."""
    rates = picked(given)
    path = given.out / "times.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    for line in settings(given):
        if line.name in known or line.name not in rates:
            continue
        if time.monotonic() > given.ends:
            raise OutOfTime
        steps = max(2 * WARM_UP, round(given.scale * TIMED_STEPS[line.kind])) + WARM_UP
        spec = replace(spec_of(line, given, rates[line.name], 0), steps=steps, grid=(WARM_UP,))
        run = train(spec, data_dir=given.data_dir)
        known[line.name] = 1e3 * float(run["seconds_per_step"][-1])
        path.write_text(json.dumps({**known, "device": run.meta["device"]}, indent=1))
        print(f"{line.name:20s} {known[line.name]:8.2f} ms", flush=True)


def tables(given: argparse.Namespace) -> None:
    """Print the tables of what is under --out, or packed, and draw the figures."""
    with unpacked(given.packed, given.out) as folder:
        show_tables(folder, given.figures)


STAGES = {
    "grid": grid,
    "runs": runs,
    "times": times,
    "pack": lambda given: pack(given.out, given.packed),
    "tables": tables,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=list(STAGES))
    parser.add_argument("--out", type=Path, default=Path("runs/first-run"))
    parser.add_argument("--data-dir", type=Path, help="folder that holds CIFAR-10")
    parser.add_argument("--algorithms", default=",".join(SEVEN))
    parser.add_argument("--protocols", default="paper,authors")
    parser.add_argument("--rates", help="for all algorithms, in place of their own")
    parser.add_argument("--extensions", type=int, default=2, help="how often rates are added at an end of those tried")
    parser.add_argument("--grid-seeds", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--scale", type=float, default=1.0, help="of the iteration counts")
    parser.add_argument("--grid-scale", type=float, default=1.0, help="of the iteration counts in the search for rates")
    parser.add_argument("--compile", action="store_true", help="torch.compile for the full-batch algorithms")
    parser.add_argument("--channels-last", action="store_true", help="channels side by side in memory")
    parser.add_argument("--workers", type=int, help="runs at a time: 8 on a GPU, 1 on a CPU")
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds after which the stage is ended")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--packed", type=Path, help="tar file to write or read")
    parser.add_argument("--figures", type=Path, help="folder for the curves as PNG")
    given = parser.parse_args()
    given.workers = given.workers or (1 if given.device == "cpu" else 8)
    given.began = time.monotonic()
    given.ends = given.began + given.budget
    if given.stage == "pack" and given.packed is None:
        parser.error("pack needs --packed FILE")
    if given.stage not in ("pack", "tables"):
        given.out.mkdir(parents=True, exist_ok=True)
    try:
        STAGES[given.stage](given)
    except (OutOfTime, Interrupted) as ended:
        why = "the budget is spent" if isinstance(ended, OutOfTime) else str(ended)
        print(f"{why}: what was made is kept, the same command goes on", flush=True)


if __name__ == "__main__":
    main()

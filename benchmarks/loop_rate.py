"""What the training loop makes of a GPU: its rate against bare replays, whole runs, number formats, several seeds.

    python benchmarks/loop_rate.py --part rate                    # loop against bare replays of its own recordings
    python benchmarks/loop_rate.py --part runs [--fraction 1]     # the time of whole runs
    python benchmarks/loop_rate.py --part formats                 # number formats and ways to run against float32
    python benchmarks/loop_rate.py --part seeds                   # one seed against several on the same GPU

``--precision``, ``--compile`` and ``--channels-last`` say how the networks run (`formats` tries several ways itself).
``--data-dir`` names the folder with CIFAR-10; without it random images of the same number and shape are used. Tables
are Markdown; ``--json FILE`` also keeps the numbers, merged with those the file holds already.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from classgrad.data import Dataset
from classgrad.dynamics import Recorder, Run
from classgrad.training import Job, RunSpec, load_data, resolve_device, train, train_all
from classgrad.training._loop import Loop
from classgrad.training._numerics import on_stream, own_stream, repeatable
from classgrad.training._recording import run_meta
from classgrad.training._signals import Interruption
from classgrad.training._streams import forked
from classgrad.training._trainer import Trainer

SIZES = {"bi7a": (5000, 714), "bi60": (30_000, 500)}
TESTS = {"bi7a": 300, "bi60": 600}
RATES = ("sgd", "sgd+o", "pcnsgd", "pcnsgd+o", "pcnsgd+r", "gd", "pcngd")
FULL = ("gd", "pcngd")
LIMITS = {  # seconds on one H200
    ("bi7a", "simple_cnn", "gd", 3000): 15.0,
    ("bi7a", "simple_cnn", "pcngd", 3000): 16.0,
    ("bi60", "simple_cnn", "gd", 3500): 90.0,
    ("bi60", "simple_cnn", "pcngd", 3500): 90.0,
    ("bi7a", "vgg16", "gd", 1500): 90.0,
    ("bi7a", "vgg16", "pcngd", 1500): 90.0,
}
WAYS = ((False, False), (False, True), (True, False), (True, True))  # compiled, channels last
STEP_LIMIT = 0.35  # milliseconds of a stochastic step of simple_cnn


@dataclass(frozen=True)
class Place:
    """Where runs take place: device, data, and how they are cut short."""

    device: torch.device
    data_dir: Path | None
    scratch: Path
    fraction: float
    precision: str
    compiled: bool
    last: bool

    def source(self, name: str) -> dict[str, Any]:
        """Give the data of a run: the paper's, or random images of the same number and shape."""
        if self.data_dir is not None:
            return {"data": name}
        path = self.scratch / f"{name}.npz"
        if not path.exists():
            _write_images(path, SIZES[name], TESTS[name])
        return {"data": str(path), "data_options": {"validation": 0.0, "test": TESTS[name] / _total(name)}}

    def spec(self, name: str, algorithm: str, **changes: Any) -> RunSpec:
        """Give the settings of a run."""
        settings = {
            **self.source(name),
            "algorithm": algorithm,
            "lr": 0.001,
            "steps": 100,
            "model": "simple_cnn",
            "device": str(self.device),
            "precision": self.precision,
            "compile": self.compiled,
            "channels_last": self.last,
        }
        return RunSpec(**{**settings, **changes})

    def load(self, spec: RunSpec) -> Dataset:
        """Load a run's data."""
        return load_data(spec, data_dir=self.data_dir)


def way(spec: RunSpec) -> str:
    """Say how a run's network is run."""
    return spec.precision + ", compiled" * spec.compile + ", channels last" * spec.channels_last


def _total(name: str) -> int:
    return sum(SIZES[name]) + TESTS[name]


def _write_images(path: Path, sizes: Sequence[int], tests: int) -> None:
    """Write images of noise around a brightness of each class: learnable, but not at once."""
    rng = np.random.default_rng(0)
    share = 1 + tests / sum(sizes)
    y = np.repeat(np.arange(len(sizes)), [round(size * share) for size in sizes])
    x = rng.integers(0, 200, (len(y), 32, 32, 3), dtype=np.uint8) + (y * 8).astype(np.uint8)[:, None, None, None]
    np.savez(path, x=x, y=y)


@contextmanager
def loop_of(spec: RunSpec, data: Dataset, device: torch.device) -> Iterator[tuple[Trainer, Loop]]:
    """Make a loop that neither measures nor saves."""
    with ExitStack() as stack:
        stack.enter_context(repeatable(device, spec.precision, spec.threads))
        stack.enter_context(forked(device))
        stack.enter_context(on_stream(own_stream(device)))
        trainer = Trainer(spec, data, device)
        stack.callback(trainer.close)
        recorder = Recorder(run_meta(spec, data, device))
        yield trainer, Loop(trainer, recorder, None, Interruption(), 1e9, None, data.preprocessing)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(work: Callable[[], object], count: int, device: torch.device, turns: int = 5) -> float:
    """Give the milliseconds of one of ``count`` calls in the middle one of some turns."""
    found = []
    for _ in range(turns):
        _wait(device)
        start = time.perf_counter()
        for _ in range(count):
            work()
        _wait(device)
        found.append((time.perf_counter() - start) * 1e3 / count)
    return sorted(found)[turns // 2]


def bare_steps(trainer: Trainer) -> Callable[[], object] | None:
    """Give a function that does nothing but replay what the loop recorded, as often as the loop does."""
    work = trainer._work
    if work._recordings is None or not len(work._recordings):
        return None
    usual = max(work._recordings._recordings.values(), key=lambda recording: recording._replays)
    refreshes = list(work._refreshes._recordings.values()) if work._refreshes is not None else []
    if not refreshes:
        return usual._graph.replay
    every, made = trainer.rule.every, iter(range(10**12))  # type: ignore[attr-defined]

    def step() -> None:
        if next(made) % every == 0:
            refreshes[0]._graph.replay()
        usual._graph.replay()

    return step


def rate(place: Place, algorithm: str, *, model: str = "simple_cnn", turns: int = 5) -> dict[str, Any]:
    """Time the loop's steps, and bare replays of its recordings."""
    spec = place.spec("bi7a", algorithm, model=model, steps=10**9, grid=(), gradients=False)
    count = 40 if algorithm in FULL else 500
    with loop_of(spec, place.load(spec), place.device) as (trainer, loop):
        for _ in range(2 * count if place.device.type == "cuda" else 2):
            loop.step(())
        before, start = trainer.busy_seconds or 0.0, time.perf_counter()
        looped = timed(lambda: loop.step(()), count, place.device, turns)
        busy = ((trainer.busy_seconds or 0.0) - before) / (time.perf_counter() - start)
        bare = bare_steps(trainer)
        replayed = None if bare is None else timed(bare, count, place.device, turns)
        return {
            "algorithm": algorithm,
            "model": model,
            "precision": way(spec),
            "loop ms": looped,
            "bare ms": replayed,
            "of bare rate": None if replayed is None else replayed / looped,
            "recordings": trainer._work.recordings,
            "busy": busy,
            "chunk": trainer.chunk,
        }


def part_rate(place: Place) -> list[dict[str, Any]]:
    """Compare the loop with bare replays for every algorithm."""
    rows = [rate(place, name) for name in RATES]
    known = {row["algorithm"]: row for row in rows}
    for row in rows:
        if row["algorithm"] in ("sgd", "sgd+o", "pcnsgd+o"):
            row["limit ms"] = STEP_LIMIT
    noisy = known["pcnsgd+r"]
    noisy["limit ms"] = 1.1 * (known["pcnsgd"]["loop ms"] + known["gd"]["loop ms"] / 5)
    return rows


def part_runs(place: Place, precisions: Sequence[str], only: str) -> list[dict[str, Any]]:
    """Time whole runs, with all their measurements, or a fraction of their steps and points."""
    rows = []
    for (name, model, algorithm, steps), limit in LIMITS.items():
        if only and f"{name}/{model}/{algorithm}" not in only.split(","):
            continue
        for precision in precisions if model == "vgg16" else (place.precision,):
            made = max(10, round(steps * place.fraction))
            spec = place.spec(
                name,
                algorithm,
                model=model,
                steps=made,
                precision=precision,
                grid="log" if made == steps else f"log:{max(2, round(50 * made / steps))}",
            )
            data = place.load(spec)
            start = time.perf_counter()
            run = train(spec, data=data)
            seconds = time.perf_counter() - start
            rows.append(
                {
                    "data": name,
                    "model": model,
                    "algorithm": algorithm,
                    "precision": way(spec),
                    "steps": made,
                    "seconds": seconds,
                    "ms per step": 1e3 * float(np.nanmedian(run["seconds_per_step"][-3:])),
                    "busy ms per step": 1e3 * run.meta.get("seconds_busy", float("nan")) / made,
                    "updates of a whole run s": steps * float(np.nanmedian(run["seconds_per_step"][-3:])),
                    "limit s": limit,
                    "busy": _busy(run),
                    "chunk": run.meta.get("chunk"),
                    "memory GiB": float(run["memory_bytes"].max()) / 2**30,
                }
            )
            show(rows[-1:], header=len(rows) == 1)
    return rows


def _busy(run: Run) -> float | None:
    seconds = run.meta.get("seconds_updates")
    return run.meta["seconds_busy"] / seconds if seconds else None


def part_formats(place: Place, only: str) -> list[dict[str, Any]]:
    """Compare number formats, torch.compile and memory layouts with float32: time, class losses, recall at the end."""
    cases = [
        ("simple_cnn", "sgd", 2000),
        ("simple_cnn", "pcnsgd+o", 2000),
        ("simple_cnn", "gd", 300),
        ("simple_cnn", "pcngd", 300),
        ("vgg16", "gd", 40),
    ]
    rows: list[dict[str, Any]] = []
    for model, algorithm, steps in cases:
        if only and f"bi7a/{model}/{algorithm}" not in only.split(","):
            continue
        made = max(10, round(steps * min(1.0, place.fraction * 10)))
        exact: Run | None = None
        for precision, compiled, last in (
            ("float32", False, False),
            *((precision, *how) for precision in ("tf32", "bf16") for how in WAYS),
        ):
            spec = place.spec(
                "bi7a",
                algorithm,
                model=model,
                steps=made,
                grid="log:20",
                precision=precision,
                compile=compiled,
                channels_last=last,
                lr=0.01,
            )
            run = train(spec, data=place.load(spec))
            exact = exact or run
            rows.append(
                {
                    "model": model,
                    "algorithm": algorithm,
                    "steps": made,
                    "precision": way(spec),
                    "ms per step": 1e3 * float(np.nanmedian(run["seconds_per_step"][-8:])),
                    "largest difference of class losses": float(
                        np.nanmax(np.abs(run.loss("train") - exact.loss("train")))
                    ),
                    "minority recall": float(run.recall("test")[-1, -1]),
                    "macro recall": float(run.macro_recall("test")[-1]),
                }
            )
            show(rows[-1:], header=len(rows) == 1)
    return rows


def part_seeds(place: Place, steps: int, counts: Sequence[int]) -> list[dict[str, Any]]:
    """Compare one seed with several: in turns on one GPU, each with a stream of its own, or as processes."""
    rows: list[dict[str, Any]] = []
    for algorithm in ("pcnsgd+o", "pcngd"):
        made = steps if algorithm == "pcnsgd+o" else max(20, steps // 50)
        for way in ("together", "processes"):
            for count in counts:
                if count == 1 and way == "processes":
                    continue
                jobs = [
                    Job(place.spec("bi7a", algorithm, steps=made, grid=(), seed=seed, gradients=False), None)
                    for seed in range(count)
                ]
                start = time.perf_counter()
                runs = train_all(
                    jobs,
                    workers=count if way == "processes" else 1,
                    together=count if way == "together" else 1,
                    data_dir=place.data_dir,
                )
                seconds = time.perf_counter() - start
                longest = max(float(run["seconds_per_step"][-1]) for run in runs) * made
                rows.append(
                    {
                        "algorithm": algorithm,
                        "way": way,
                        "seeds": count,
                        "steps": made,
                        "seconds in all": seconds,
                        "steps per s of updates": count * made / longest,
                        "steps per s in all": count * made / seconds,
                    }
                )
                show(rows[-1:], header=len(rows) == 1)
    return rows


def show(rows: Sequence[dict[str, Any]], *, header: bool = True) -> None:
    """Print rows as a Markdown table."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    if header:
        print("| " + " | ".join(names) + " |")
        print("|" + " --- |" * len(names))
    for row in rows:
        print("| " + " | ".join(_cell(row.get(name)) for name in names) + " |", flush=True)


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def keep(path: Path | None, part: str, rows: list[dict[str, Any]], device: torch.device) -> None:
    """Add a part's rows to the file."""
    if path is None:
        return
    found = json.loads(path.read_text()) if path.exists() else {}
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    found[part] = {"device": name, "torch": torch.__version__, "rows": rows}
    path.write_text(json.dumps(found, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", default="rate", choices=("rate", "runs", "formats", "seeds"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--vgg-precisions", default="tf32", help="number formats of the vgg16 runs, by commas")
    parser.add_argument("--only", default="", help="of `runs` and `formats`, such as bi7a/simple_cnn/gd, by commas")
    parser.add_argument("--compile", action="store_true", help="torch.compile")
    parser.add_argument("--channels-last", action="store_true", help="channels side by side in memory")
    parser.add_argument("--fraction", type=float, default=0.1, help="of the steps of whole runs that are made")
    parser.add_argument("--steps", type=int, default=10_000, help="of each seed")
    parser.add_argument("--seeds", default="1,2,4,8")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    device = resolve_device(given.device)
    how = given.precision + ", compiled" * given.compile + ", channels last" * given.channels_last
    print(f"# {given.part}, {how}, {device}, torch {torch.__version__}\n")
    with tempfile.TemporaryDirectory() as scratch:
        place = Place(
            device,
            given.data_dir,
            Path(scratch),
            given.fraction,
            given.precision,
            given.compile,
            given.channels_last,
        )
        if given.part == "rate":
            rows = part_rate(place)
            show(rows)
        elif given.part == "runs":
            rows = part_runs(place, given.vgg_precisions.split(","), given.only)
        elif given.part == "formats":
            rows = part_formats(place, given.only)
        else:
            rows = part_seeds(place, given.steps, [int(count) for count in given.seeds.split(",")])
    keep(given.json, given.part, rows, device)


if __name__ == "__main__":
    main()

"""The records of first_run.py as tables beside the paper's numbers, and as figures."""

from __future__ import annotations

import json
import math
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from classgrad.dynamics import Run, detect_mid, load_run, summarize
from classgrad.report import write_report
from classgrad.report._results import COLUMNS

FILES = ("rates.json", "times.json")
THRESHOLD = 0.7
KEPT = ("overview", "recall")  # the figures that a page has use for

PAPER: dict[str, tuple[str, str, str, str]] = {
    "gd": ("80.4 ± 0.4", "272 ± 6", "yes", "5"),
    "pcngd": ("82.8 ± 0.4", "16.8 ± 0.3", "no", "5"),
    "sgd": ("77.0 ± 0.8", "1,400 ± 300", "yes", "0.2"),
    "pcnsgd": ("–", "–", "yes", "0.2"),
    "pcnsgd+r": ("–", "–", "no", "4"),
    "sgd+o": ("84.9 ± 0.2", "20.3 ± 0.4", "no", "0.2"),
    "pcnsgd+o": ("90.9 ± 0.2", "14.5 ± 0.2", "no", "0.2"),
}
"""Peak test recall in %, τ(0.7), whether there is a drop, seconds per iteration (Tabs. GD and SGD, Figs. PCNSGD,
App. "Execution times": of Bi7b, whose size is the same, for the full-batch algorithms)."""


def pack(out: Path, file: Path) -> None:
    """Put the records of all runs and the small files beside them into one tar file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, "w") as tar:
        for path in [*sorted(out.rglob("run.npz")), *(out / name for name in FILES if (out / name).exists())]:
            tar.add(path, path.relative_to(out))
    print(f"{file}: {file.stat().st_size / 2**20:.2f} MiB")


@contextmanager
def unpacked(file: Path | None, out: Path) -> Iterator[Path]:
    """Give the folder of records: that of the runs, or one that the tar file is unpacked to for a while."""
    if file is None:
        yield out
        return
    with tempfile.TemporaryDirectory() as folder, tarfile.open(file) as tar:
        tar.extractall(folder, filter="data")
        yield Path(folder)


def show_tables(folder: Path, figures: Path | None) -> None:
    """Print the rates with their scores and the results beside the paper's, and draw the curves."""
    rates, times = (_read(folder / name) for name in FILES)
    print(rate_table(rates))
    print(tau_table(folder, rates))
    runs = {name: _runs(folder, name, found["lr"]) for name, found in rates.items()}
    runs = {name: found for name, found in runs.items() if found}
    if not runs:
        print("no run is finished yet")
        return
    print(result_table(runs, rates, times))
    print(seed_table(runs))
    if figures is not None:
        _draw([run for found in runs.values() for run in found], figures)


def rate_table(rates: dict[str, Any]) -> str:
    """Every rate tried with its peak of macro recall on the validation split, the picked one in bold."""
    tried = sorted({float(lr) for found in rates.values() for lr in found["scores"]})
    rows = []
    for name, found in rates.items():
        cells = [(lr, found["scores"].get(f"{lr:g}")) for lr in tried]
        texts = ["" if value is None else f"{100 * value:.1f}" for _, value in cells]
        bold = [f"**{text}**" if lr == found["lr"] else text for (lr, _), text in zip(cells, texts, strict=True)]
        rows.append([*reversed(name.split("/")), *bold])
    return _markdown(["algorithm", "protocol", *(f"{lr:g}" for lr in tried)], rows)


def tau_table(folder: Path, rates: dict[str, Any]) -> str:
    """τ on the test split at every rate tried, averaged over the seeds of the search."""
    rows = []
    for name, found in rates.items():
        for lr in map(float, found["scores"]):
            ended = [run for run in _runs(folder, name, lr, "grid") if run.meta["status"] == "finished"]
            if ended:
                rows.append(
                    [*reversed(name.split("/")), f"{lr:g}", COLUMNS["steps to R*"](summarize(ended, THRESHOLD))]
                )
    return _markdown(["algorithm", "protocol", "lr", f"τ({THRESHOLD}) in the search"], rows)


def result_table(runs: dict[str, list[Run]], rates: dict[str, Any], times: dict[str, Any]) -> str:
    """One line per algorithm and protocol: ours, and the paper's in the column after it."""
    titles = ["algorithm", "protocol", "lr", "seeds", "peak macro recall, %", "paper", f"τ({THRESHOLD})", "paper"]
    titles += ["peak picked on validation, %", "last minority recall, %", "MID", "paper", "ms/iteration", "paper, s"]
    return _markdown(titles, [_result(name, found, rates, times) for name, found in runs.items()])


def _result(name: str, runs: list[Run], rates: dict[str, Any], times: dict[str, Any]) -> list[str]:
    protocol, algorithm = name.split("/")
    ended = [run for run in runs if run.meta["status"] == "finished"]
    seeds = str(len(runs)) if len(ended) == len(runs) else f"{len(ended)} of {len(runs)} finished"
    cells = [algorithm, protocol, f"{rates[name]['lr']:g}", seeds]
    recall, tau, drop, seconds = PAPER[algorithm]
    own = f"{times[name]:.2f}" if name in times else "–"
    if not ended:
        return [*cells, "–", recall, "–", tau, "–", "–", "–", drop, own, seconds]
    found = summarize(ended, THRESHOLD)
    chosen = summarize(ended, THRESHOLD, select="validation")
    return [
        *cells,
        _percent(found.peak.mean, found.peak.error),
        recall,
        COLUMNS["steps to R*"](found),
        tau,
        _percent(chosen.peak.mean, chosen.peak.error),
        _percent(found.minority_final.mean, found.minority_final.error),
        COLUMNS["minority initial drop"](found),
        drop,
        own,
        seconds,
    ]


def seed_table(runs: dict[str, list[Run]]) -> str:
    """Every run by itself: what the averages hide."""
    rows = []
    for name, found in runs.items():
        for run in found:
            curve = run.macro_recall("test")
            mid = detect_mid(run)
            reached = np.flatnonzero(curve >= THRESHOLD)
            minority = "–" if not run.minority.any() else f"{100 * run.minority_recall('test')[0]:.0f}"
            rows.append(
                [
                    *reversed(name.split("/")),
                    str(run.meta["seed"]),
                    run.meta["status"],
                    f"{100 * np.nanmax(curve):.1f}",
                    f"{run.steps[int(np.nanargmax(curve))]:,}",
                    f"{run.steps[reached[0]]:,}" if len(reached) else "–",
                    minority,
                    f"{'drop' if mid.verdict else 'none'} ({mid.basis})",
                ]
            )
    titles = ["algorithm", "protocol", "seed", "status", "peak, %", "at step", f"τ({THRESHOLD})"]
    return _markdown([*titles, "minority recall at step 0, %", "MID (told by)"], rows)


def _draw(runs: Sequence[Run], folder: Path) -> None:
    """Draw what the report draws, and keep the figures of :data:`KEPT`."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        for path in write_report(runs, scratch, figures=("png",))[1:]:
            if any(path.stem.endswith(f"-{name}") for name in KEPT):
                target = folder / f"first-run-{path.name}"
                shutil.copy(path, target)
                print(f"{target}: {target.stat().st_size / 1024:.0f} KiB")


def _runs(folder: Path, name: str, lr: float, stage: str = "runs") -> list[Run]:
    place = folder / stage / name / f"lr-{lr:g}"
    found = [load_run(path) for path in place.glob("seed-*/run.npz")]
    return sorted((run for run in found if run.meta["status"] != "interrupted"), key=lambda run: run.meta["seed"])


def _read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return content


def _percent(mean: float, error: float) -> str:
    if math.isnan(mean):
        return "–"
    return f"{100 * mean:.1f}" + ("" if math.isnan(error) else f" ± {100 * error:.1f}")


def _markdown(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (titles, ["---"] * len(titles), *rows)) + "\n"

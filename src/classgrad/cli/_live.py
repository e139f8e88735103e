"""What is shown and logged while runs go on."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from rich.progress import TaskID

from classgrad._errors import InputError
from classgrad.cli._console import Output, visible
from classgrad.cli._source import file_name
from classgrad.dynamics import class_norms, recall
from classgrad.training import Job, Progress

_EVERY = 60.0
"""Seconds between the lines of a log."""


class Live:
    """One bar for all updates to make, and one for every run at work with its recalls so far.

    Where nobody watches a terminal it is a line a minute on standard error instead.
    """

    def __init__(
        self, output: Output, jobs: Sequence[Job], classes: Mapping[str, Sequence[str]], logs: Path | None
    ) -> None:
        self._bars = output.progress()
        self._logs = output.talks and self._bars.disable
        self._logged = time.monotonic()
        self._jobs = jobs
        self._done = [0] * len(jobs)
        self._total = self._bars.add_task(f"{len(jobs)} runs", total=sum(job.spec.steps for job in jobs))
        self._tasks: dict[int, TaskID] = {}
        self._boards = None if logs is None else Boards(logs, jobs, classes)

    def __enter__(self) -> Live:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()
        if self._boards is not None:
            self._boards.close()

    def __call__(self, number: int, progress: Progress) -> None:
        """Show how far run ``number`` is."""
        self._bars.advance(self._total, progress.step - self._done[number])
        self._done[number] = progress.step
        self._show(number, progress)
        if self._logs and time.monotonic() - self._logged >= _EVERY:
            self._logged = time.monotonic()
            print(f"{self._name(number)}: {progress.step:,} of {progress.steps:,} steps", file=sys.stderr, flush=True)
        if self._boards is not None and progress.point is not None:
            self._boards.write(number, progress.step, progress.point)

    def _show(self, number: int, progress: Progress) -> None:
        """Give a run its bar while it is at work; the last update and the last measurement may both say it is done."""
        if progress.step == progress.steps:
            task = self._tasks.pop(number, None)
            if task is not None:
                self._bars.remove_task(task)
            return
        if number not in self._tasks:
            self._tasks[number] = self._bars.add_task(self._name(number), total=progress.steps)
        described = {} if progress.point is None else {"description": self._describe(number, progress.point)}
        self._bars.update(self._tasks[number], completed=progress.step, **described)  # type: ignore[arg-type]

    def _name(self, number: int) -> str:
        spec = self._jobs[number].spec
        return visible(f"{spec.data} {spec.algorithm} seed {spec.seed}")

    def _describe(self, number: int, point: dict[str, Any]) -> str:
        name = next(f"{split}/confusion" for split in ("test", "validation", "train") if f"{split}/confusion" in point)
        recalls = _array(recall(torch.as_tensor(point[name])))
        return f"{self._name(number)}: recall {np.nanmean(recalls):.2f}, worst class {np.nanmin(recalls):.2f}"


class Boards:
    """TensorBoard logs: recall, loss and gradient norm of every class at every measuring point."""

    def __init__(self, logs: Path, jobs: Sequence[Job], classes: Mapping[str, Sequence[str]]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise InputError("--tensorboard needs the package tensorboard: pip install 'classgrad[lab]'") from error
        self._make = SummaryWriter
        self._logs = logs
        self._jobs = jobs
        self._classes = classes
        self._writers: dict[int, Any] = {}

    def write(self, number: int, step: int, point: dict[str, Any]) -> None:
        """Log one measuring point of run ``number``."""
        spec = self._jobs[number].spec
        if number not in self._writers:
            place = self._logs / file_name(spec.data) / spec.algorithm / f"seed-{spec.seed}"
            self._writers[number] = self._make(str(place))
        for name, value in _scalars(point, self._classes[spec.data]).items():
            self._writers[number].add_scalar(name, value, step)

    def close(self) -> None:
        """Write everything out."""
        for writer in self._writers.values():
            writer.close()


def _scalars(point: dict[str, Any], classes: Sequence[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, value in point.items():
        split, _, quantity = name.partition("/")
        if quantity == "confusion":
            recalls = _array(recall(torch.as_tensor(value)))
            found |= _named(f"recall/{split}", recalls, classes) | {f"macro recall/{split}": float(np.nanmean(recalls))}
        elif quantity == "loss":
            found |= _named(f"loss/{split}", _array(value), classes)
        elif name == "gram":
            found |= _named("gradient norm", _array(class_norms(torch.as_tensor(value))), classes)
    return found


def _named(prefix: str, values: np.ndarray[Any, Any], classes: Sequence[str]) -> dict[str, float]:
    return {f"{prefix}/{label}": float(value) for label, value in zip(classes, values, strict=True)}


def _array(value: Any) -> np.ndarray[Any, Any]:
    return torch.as_tensor(value).detach().cpu().numpy()

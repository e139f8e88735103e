"""Many runs at once, each in one of a few worker processes."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from torch import Tensor

from classgrad._errors import InputError
from classgrad.data import Dataset
from classgrad.dynamics import Run
from classgrad.training._loop import Progress
from classgrad.training._signals import Interrupted, Interruption
from classgrad.training._spec import RunSpec
from classgrad.training._train import Task, load_data, train, train_together

PoolReport = Callable[[int, Progress], None]
"""Called with the number of the job and its progress."""

_WAIT = 0.1  # seconds between two looks at the workers and the signals


@dataclass(frozen=True)
class Job:
    """One run of many: what to train, and the folder for its record and checkpoints."""

    spec: RunSpec
    out_dir: Path | None


def train_all(
    jobs: Sequence[Job],
    *,
    workers: int | None = None,
    data_dir: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    together: int = 1,
    report: PoolReport | None = None,
) -> list[Run]:
    """Train all jobs and return their records in the same order; a record does not depend on the number of workers.

    ``workers`` are processes, by default one per CPU core, and 1 as soon as a job may use a CUDA device; several may
    share one. ``together`` is how many runs in a row one process makes in turns, on a GPU with a stream for each, where
    their settings allow it (see :func:`~classgrad.training._train.train_together`). The other parameters are those of
    :func:`train`.
    """
    if together < 1:
        raise InputError(f"Parameter `together` should be at least 1. Found {together}.")
    count = min(len(jobs), _default_workers(jobs) if workers is None else workers)
    if workers is not None and workers < 1:
        raise InputError(f"Parameter `workers` should be at least 1. Found {workers}.")
    options = {"resume": resume, "overwrite": overwrite}
    if count <= 1:
        return _in_turn(jobs, data_dir, options, report, together)
    return _Pool(jobs, count, data_dir, options, report).run()


def _default_workers(jobs: Sequence[Job]) -> int:
    from torch.cuda import is_available

    on_cpu = all(job.spec.device == "cpu" or (job.spec.device == "auto" and not is_available()) for job in jobs)
    return len(os.sched_getaffinity(0)) if on_cpu and hasattr(os, "sched_getaffinity") else 1


def _in_turn(
    jobs: Sequence[Job],
    data_dir: str | Path | None,
    options: dict[str, Any],
    report: PoolReport | None,
    together: int,
) -> list[Run]:
    sets = _Loaded(data_dir)
    tasks = [
        Task(job.spec, sets.of(job.spec), job.out_dir, None if report is None else _numbered(report, number))
        for number, job in enumerate(jobs)
    ]
    return [run for some in _companies(tasks, together) for run in train_together(some, **options)]


def _companies(tasks: Sequence[Task], size: int) -> list[list[Task]]:
    """Put at most ``size`` runs in a row together, those that may be made in turns."""
    companies: list[list[Task]] = []
    last: object = None
    for task in tasks:
        spec = task.spec
        kind = None if size == 1 or task.draws else (spec.device, spec.precision, spec.threads)
        if kind is not None and kind == last and len(companies[-1]) < size:
            companies[-1].append(task)
        else:
            companies.append([task])
        last = kind
    return companies


def _numbered(report: PoolReport, number: int) -> Callable[[Progress], None]:
    return lambda progress: report(number, progress)


class _Loaded:
    """Data sets, each loaded once."""

    def __init__(self, data_dir: str | Path | None) -> None:
        self._data_dir = data_dir
        self._sets: dict[str, Dataset] = {}

    def of(self, spec: RunSpec) -> Dataset:
        authors = (spec.row.composition, spec.batch_size) if spec.protocol == "authors" else None
        key = repr((spec.data, spec.data_options, spec.protocol, authors))
        if key not in self._sets:
            self._sets[key] = load_data(spec, data_dir=self._data_dir)
        return self._sets[key]


class _Pool:
    """The parent's side: hands out jobs, listens, and ends all workers when one fails or a signal comes."""

    def __init__(
        self,
        jobs: Sequence[Job],
        workers: int,
        data_dir: str | Path | None,
        options: dict[str, Any],
        report: PoolReport | None,
    ) -> None:
        context = multiprocessing.get_context("spawn")  # a forked torch may hang
        self._jobs: Any = context.Queue()
        self._messages: Any = context.Queue()
        self._report = report
        self._runs: dict[int, Run] = {}
        self._count = len(jobs)
        for numbered in enumerate(jobs):
            self._jobs.put(numbered)
        for _ in range(workers):
            self._jobs.put(None)
        self._workers: list[BaseProcess] = [
            context.Process(target=_work, args=(self._jobs, self._messages, data_dir, options), daemon=True)
            for _ in range(workers)
        ]

    def run(self) -> list[Run]:
        with Interruption() as interruption:
            for worker in self._workers:
                worker.start()
            try:
                while len(self._runs) < self._count:
                    self._listen()
                    if interruption.signal is not None:
                        raise Interrupted("stopped; the runs are saved and can be resumed")
            finally:
                self._end()
        return [self._runs[number] for number in range(self._count)]

    def _listen(self) -> None:
        try:
            kind, number, content = self._messages.get(timeout=_WAIT)
        except queue.Empty:
            self._check_alive()
            return
        if kind == "progress" and self._report is not None:
            self._report(number, content)
        elif kind == "run":
            self._runs[number] = content
        elif kind == "refused":
            raise InputError(content)
        elif kind == "interrupted":
            raise Interrupted(content)
        elif kind == "failed":
            raise RuntimeError(f"a worker failed:\n{content}")

    def _check_alive(self) -> None:
        dead = [worker for worker in self._workers if worker.exitcode not in (None, 0)]
        if dead and self._messages.empty():
            raise InputError(
                f"A worker process ended with code {dead[0].exitcode}, perhaps for want of memory; resume its run."
            )

    def _end(self) -> None:
        """Let workers that are still busy save their state and stop, as SIGTERM asks them to."""
        for worker in self._workers:
            if worker.is_alive() and len(self._runs) < self._count:
                worker.terminate()
        for worker in self._workers:
            while worker.is_alive():
                _drain(self._messages)  # a worker cannot end before its messages are taken
                worker.join(_WAIT)


def _drain(messages: Any) -> None:
    try:
        while True:
            messages.get_nowait()
    except queue.Empty:
        return


def _work(jobs: Any, messages: Any, data_dir: str | Path | None, options: dict[str, Any]) -> None:
    """Do jobs until there are none, one fails or a signal comes."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    number = -1
    try:
        sets = _Loaded(data_dir)
        while (job := jobs.get()) is not None:
            number, spec, out_dir = job[0], job[1].spec, job[1].out_dir
            run = train(spec, out_dir, data=sets.of(spec), report=_sender(messages, number), **options)
            messages.put(("run", number, run))
        answer = None
    except InputError as error:
        answer = ("refused", number, str(error))
    except KeyboardInterrupt as error:
        answer = ("interrupted", number, str(error) or "stopped")
    except Exception:
        answer = ("failed", number, traceback.format_exc())
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.SIG_IGN)  # nothing is left to save
    if answer is not None:
        messages.put(answer)


def _sender(messages: Any, number: int) -> Callable[[Progress], None]:
    def send(progress: Progress) -> None:
        point = None if progress.point is None else {name: _plain(value) for name, value in progress.point.items()}
        messages.put(("progress", number, Progress(progress.step, progress.steps, point)))

    return send


def _plain(value: Any) -> Any:
    """Tensors as numpy arrays: sent between processes, a tensor would take a file descriptor."""
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else value

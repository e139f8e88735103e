"""Runs as a whole: load the data, make or restore the state, run the loop."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn.modules.dropout import _DropoutNd

from classgrad._errors import InputError
from classgrad.data import Dataset, load
from classgrad.dynamics import Recorder, Run
from classgrad.training._folder import RunFolder
from classgrad.training._loop import Loop, Report
from classgrad.training._models import make_model
from classgrad.training._numerics import on_stream, own_stream, repeatable, resolve_device
from classgrad.training._recording import run_meta
from classgrad.training._signals import Interrupted, Interruption
from classgrad.training._spec import RunSpec
from classgrad.training._streams import forked
from classgrad.training._trainer import Trainer


def load_data(spec: RunSpec, *, data_dir: str | Path | None = None, progress: bool = False) -> Dataset:
    """Load the data of a run; in the authors' protocol it depends on the algorithm and the batch size."""
    options = dict(spec.data_options)
    if spec.protocol == "authors":
        options = {"composition": spec.row.composition, "batch_size": spec.batch_size, **options}
    return load(spec.data, protocol=spec.protocol, data_dir=data_dir, progress=progress, **options)


def train(
    spec: RunSpec,
    out_dir: str | Path | None = None,
    *,
    data: Dataset | None = None,
    data_dir: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    checkpoint_seconds: float = 60.0,
    report: Report | None = None,
) -> Run:
    """Train as ``spec`` says and return the record.

    Args:
        spec: the run.
        out_dir: folder for the record and the checkpoints; None keeps nothing on disk.
        data: the data set, where it is not to be loaded by the name in ``spec``.
        data_dir: where :func:`classgrad.data.load` looks for CIFAR.
        resume: go on from the checkpoint in ``out_dir``, if there is one; the final record is bit-identical to that of
            a run that was never stopped. A finished run is read, not repeated.
        overwrite: start anew where ``out_dir`` holds a run.
        checkpoint_seconds: time between checkpoints.
        report: called with the progress, several times a second at most, and at every measuring point.

    Raises:
        Interrupted: after SIGINT or SIGTERM, when the state has been saved.

    >>> run = train(RunSpec("digits-bi20", "pcngd", lr=0.05, steps=3, device="cpu"))
    >>> run.steps.tolist(), run.meta["status"]
    ([0, 1, 2, 3], 'finished')
    """
    dataset = load_data(spec, data_dir=data_dir) if data is None else data
    task = Task(spec, dataset, None if out_dir is None else Path(out_dir), report)
    (run,) = train_together([task], resume=resume, overwrite=overwrite, checkpoint_seconds=checkpoint_seconds)
    return run


@dataclass(frozen=True)
class Task:
    """A run to make: its settings, its data, the folder for its record and checkpoints, and who is told of it."""

    spec: RunSpec
    data: Dataset
    out_dir: Path | None = None
    report: Report | None = None

    @property
    def draws(self) -> bool:
        """Whether the network draws from torch's global generator in training, as dropout does."""
        layers = make_model(self.spec, self.data.preprocessing).modules()
        return any(isinstance(layer, _DropoutNd) and layer.p > 0 for layer in layers)


def train_together(
    tasks: Sequence[Task], *, resume: bool = False, overwrite: bool = False, checkpoint_seconds: float = 60.0
) -> list[Run]:
    """Make several runs in turns, a step of each at a time, and return their records.

    On a GPU each has a stream of its own, so that steps too small to fill it run side by side. The runs must have
    device, precision and threads in common, and no dropout: it draws from a generator they share.
    """
    if resume and overwrite:
        raise InputError("Of `resume` and `overwrite` one at most should be given. Found both.")
    shared = {(task.spec.device, task.spec.precision, task.spec.threads) for task in tasks}
    if len(tasks) > 1 and (len(shared) > 1 or any(task.draws for task in tasks)):
        raise InputError(
            "Runs made together should have device, precision and threads in common and no dropout. Found others."
        )
    first = tasks[0].spec
    runs: dict[int, Run] = {}
    device = resolve_device(first.device)
    with ExitStack() as stack:
        stack.enter_context(repeatable(device, first.precision, first.threads))
        stack.enter_context(forked(device))
        interruption = stack.enter_context(Interruption())
        turns: dict[int, _Turns] = {}
        for number, task in enumerate(tasks):
            folder = None
            if task.out_dir is not None:
                folder = RunFolder(task.out_dir, task.spec.identity(task.data.fingerprint))
                done = folder.enter(resume=resume, overwrite=overwrite)
                if done is not None:
                    runs[number] = done
                    continue
            turns[number] = stack.enter_context(_Turns(task, folder, device, interruption, checkpoint_seconds, resume))
        _take_turns(turns, runs)
    return [runs[number] for number in range(len(tasks))]


def _take_turns(turns: dict[int, _Turns], runs: dict[int, Run]) -> None:
    """Let each run make a step, again and again; a signal is heeded by all before it ends them."""
    stopped: Interrupted | None = None
    while turns:
        for number, run in list(turns.items()):
            try:
                found = run.step()
            except Interrupted as interruption:
                stopped = interruption
                del turns[number]
                continue
            if found is not None:
                runs[number] = found
                del turns[number]
    if stopped is not None:
        raise stopped


class _Turns:
    """A run that is made a step at a time, on a stream of its own."""

    def __init__(
        self,
        task: Task,
        folder: RunFolder | None,
        device: torch.device,
        interruption: Interruption,
        checkpoint_seconds: float,
        resume: bool,
    ) -> None:
        self._stream = own_stream(device)
        with on_stream(self._stream):
            self._trainer = Trainer(task.spec, task.data, device)
            recorder = Recorder(run_meta(task.spec, task.data, device))
            loop = Loop(
                self._trainer,
                recorder,
                folder,
                interruption,
                checkpoint_seconds,
                task.report,
                task.data.preprocessing,
            )
        self._steps = loop.run(resume)

    def __enter__(self) -> _Turns:
        return self

    def __exit__(self, *_: object) -> None:
        self._trainer.close()

    def step(self) -> Run | None:
        """Make a step; the record after the last one."""
        with on_stream(self._stream):
            try:
                next(self._steps)
            except StopIteration as end:
                run: Run = end.value
                return run
        return None

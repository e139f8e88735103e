"""Runs as a whole: load the data, make or restore the state, run the loop."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from classgrad.data import Dataset, load
from classgrad.dynamics import Recorder, Run
from classgrad.training._folder import RunFolder
from classgrad.training._loop import Loop, Report
from classgrad.training._numerics import own_stream, repeatable, resolve_device
from classgrad.training._recording import run_meta
from classgrad.training._signals import Interruption
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
    folder = None if out_dir is None else RunFolder(Path(out_dir), spec.identity(dataset.fingerprint))
    if folder is not None:
        done = folder.enter(resume=resume, overwrite=overwrite)
        if done is not None:
            return done
    device = resolve_device(spec.device)
    with ExitStack() as stack:
        stack.enter_context(repeatable(device, spec.precision, spec.threads))
        stack.enter_context(forked(device))
        stack.enter_context(own_stream(device))
        interruption = stack.enter_context(Interruption())
        trainer = Trainer(spec, dataset, device)
        stack.callback(trainer.close)
        recorder = Recorder(run_meta(spec, dataset, device))
        loop = Loop(trainer, recorder, folder, interruption, checkpoint_seconds, report, dataset.preprocessing)
        return loop.run(resume)

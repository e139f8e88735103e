"""The one loop that all algorithms share."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Generator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from classgrad.data import Preprocessing
from classgrad.dynamics import Recorder, Run, measuring_grid
from classgrad.training._divergence import Diverged
from classgrad.training._folder import RunFolder
from classgrad.training._recording import Measurements
from classgrad.training._signals import Interrupted, Interruption
from classgrad.training._trainer import Trainer

_TICK = 0.2  # seconds between two reports of progress
_UNREAD = 2  # letters that may be on their way from the device: it is kept busy, and the loop not far ahead of it


@dataclass(frozen=True)
class Progress:
    """How far a run is; at measuring points with what was measured there."""

    step: int
    steps: int
    point: dict[str, Any] | None = None


Report = Callable[[Progress], None]


class Loop:
    """Updates, measurements, checkpoints and signals in their order."""

    def __init__(
        self,
        trainer: Trainer,
        recorder: Recorder,
        folder: RunFolder | None,
        interruption: Interruption,
        checkpoint_seconds: float,
        report: Report | None,
        preprocessing: Preprocessing,
    ) -> None:
        self._trainer = trainer
        self._recorder = recorder
        self._measurements = Measurements(trainer)
        self._folder = folder
        self._interruption = interruption
        self._pause = checkpoint_seconds
        self._report = report
        self._preprocessing = preprocessing
        self._saved = self._told = time.monotonic()
        self._counts = trainer.counts.cpu()
        if trainer.spec.every:
            trainer.watch.record = lambda number, values: self._recorder.every(number, values)

    def run(self, resume: bool) -> Generator[None, None, Run]:
        """Go on from the checkpoint or from the start, to the end, a step at a time; the record comes with the end."""
        finished = self._restore() if resume else False
        try:
            if not finished:
                self._save(finished=False)  # a folder that cannot be written to is found out now, not in an hour
                points = frozenset(measuring_grid(self._trainer.spec.grid, self._trainer.spec.steps))
                while self.step(points):
                    yield
                self._save(finished=True)
        except Diverged as error:
            return self._close("diverged", str(error))
        return self._close("finished")

    def step(self, points: Container[int]) -> bool:
        """Measure if this is one of the ``points``, then make an update; False where there is none left to make."""
        trainer, spec = self._trainer, self._trainer.spec
        measured = trainer.step in points
        if measured:
            self._point()
        if trainer.step == spec.steps:
            return False
        indices = trainer.next_batch()
        if measured:
            self._measurements.before_step(indices)
        trainer.clock.start()
        update = trainer.update(indices)
        if measured:
            trainer.clock.stop()
            trainer.watch.check()  # what follows is recorded only if the update was finite
            trainer.mailbox.send(self._measurements.after_step(update), lambda found: self._recorder.amend(found))
        self._between_steps()
        return True

    def _point(self) -> None:
        trainer, step = self._trainer, self._trainer.step
        trainer.watch.check()
        trainer.mailbox.send(self._measurements.point(), lambda found: self._record(step, found))

    def _record(self, step: int, values: dict[str, Any]) -> None:
        losses = values["train/loss"]
        assert isinstance(losses, Tensor)
        losses = losses.cpu()
        if not bool((losses.isfinite() | (self._counts == 0)).all()):
            values.pop("gram", None)
        self._recorder.point(step, values)
        self._tell(values, step)
        self._trainer.watch.check_losses(step, self._trainer.spec.lr, losses, self._counts)

    def _between_steps(self) -> None:
        now = time.monotonic()
        if self._report is not None and now - self._told >= _TICK:
            self._tell(None, self._trainer.step)
        if len(self._trainer.mailbox) > _UNREAD:
            self._trainer.mailbox.deliver(keep=_UNREAD)
        if not self._trainer.resumable:
            return
        if self._interruption.signal is not None:
            self._stop()
        if now - self._saved >= self._pause:
            self._save(finished=False)

    def _stop(self) -> None:
        self._save(finished=False)
        where = "" if self._folder is None else f"; its state is in {self._folder.path} and can be resumed"
        if len(self._recorder):
            self._close("interrupted", f"stopped after step {self._trainer.step}")
        raise Interrupted(f"stopped after step {self._trainer.step}{where}")

    def _tell(self, point: dict[str, Any] | None, step: int) -> None:
        self._told = time.monotonic()
        if self._report is not None:
            self._report(Progress(step, self._trainer.spec.steps, point))

    def _save(self, *, finished: bool) -> None:
        self._saved = time.monotonic()
        self._trainer.watch.check()
        self._trainer.mailbox.deliver()
        if self._folder is None:
            return
        self._trainer.clock.stop()
        self._folder.save(
            {
                "finished": finished,
                "spec": self._trainer.spec.to_json(),
                "preprocessing": self._preprocessing.to_json(),
                "recorder": self._recorder.state_dict(),
                **self._trainer.state_dict(),
            }
        )

    def _restore(self) -> bool:
        state = None if self._folder is None else self._folder.load()
        if state is None:
            return False
        self._trainer.load_state_dict(state)
        self._recorder = Recorder.from_state_dict(state["recorder"])
        self._measurements = Measurements(self._trainer)
        return bool(state["finished"])

    def _close(self, status: str, message: str = "") -> Run:
        trainer = self._trainer
        more: dict[str, Any] = {} if trainer.reservoir is None else {"returned_step": trainer.reservoir.step}
        if trainer.gpu:
            more["chunk"] = trainer.chunk
            busy = trainer.busy_seconds
            if busy is not None:
                trainer.clock.stop()
                trainer.clock.lap()()
                more |= {"seconds_busy": busy, "seconds_updates": trainer.clock.total}
        run = self._recorder.run(status, message, **more)
        if self._folder is not None:
            self._folder.record(run)
        return run

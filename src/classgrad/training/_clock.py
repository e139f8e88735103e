"""How long updates take, on the device where they run."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


class Clock:
    """Adds up the seconds of stretches of updates; on a GPU between events on its stream, without waiting for it."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._began: torch.cuda.Event | float | None = None
        self._stretches: list[Callable[[], float]] = []
        self.total = 0.0

    def start(self) -> None:
        """Begin a stretch, unless one is under way."""
        if self._began is None:
            self._began = self._now()

    def stop(self) -> None:
        """End the stretch, if one is under way."""
        if self._began is not None:
            self._stretches.append(_between(self._began, self._now()))
            self._began = None

    def lap(self) -> Callable[[], float]:
        """Return a function that gives the seconds since the last lap, once the device has come so far."""
        stretches, self._stretches = self._stretches, []

        def seconds() -> float:
            lap = sum(stretch() for stretch in stretches)
            self.total += lap
            return lap

        return seconds

    def _now(self) -> torch.cuda.Event | float:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event


def _between(start: torch.cuda.Event | float, stop: torch.cuda.Event | float) -> Callable[[], float]:
    if isinstance(start, float) or isinstance(stop, float):
        seconds = float(stop) - float(start)  # type: ignore[arg-type]
        return lambda: seconds

    def elapsed() -> float:
        stop.synchronize()
        return float(start.elapsed_time(stop)) / 1e3

    return elapsed

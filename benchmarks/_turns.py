"""Contenders timed in one process, in turns, so that a slow moment of the machine hits them alike.

A turn is some steps in a row, as a training loop makes them. The first of them finds the processor's caches and the
allocator as another contender left them; it is counted only where it is the whole turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch

Run = Callable[[], float]
"""Makes a step and returns its seconds."""

MOST = 8
"""Steps in a turn."""
TURN = 0.1
"""Seconds after which no further step of a turn is begun."""
SETTLING = 3
"""Turns on a GPU before any is timed: the tensors of all contenders have to come to lie somewhere."""
WARM_UP = 24
"""Steps of one contender alone, on a GPU."""


def timed_step(
    gradient: Callable[[], object],
    optimizer: torch.optim.Optimizer,
    device: str,
    before: Callable[[], object] = lambda: None,
) -> float:
    """Make a step and return its seconds, without those of what comes ``before``."""
    before()
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    gradient()
    optimizer.step()
    optimizer.zero_grad()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def warm_up(run: Run, device: str) -> None:
    """Make steps until those of a GPU have recorded what they replay, or a second is over."""
    start = time.perf_counter()
    for _ in range(WARM_UP if device == "cuda" else 0):
        if time.perf_counter() - start < 1:
            run()


def settle(runs: Mapping[str, Run], device: str, most: int = MOST) -> None:
    """Have a GPU's contenders find their places beside each other."""
    for _ in range(SETTLING if device == "cuda" else 0):
        for run in runs.values():
            _turn(run, most)


def take_turns(runs: Mapping[str, Run], seconds: float, most: int = MOST, least: int = 3) -> dict[str, list[float]]:
    """Time them until each had its share of the seconds, and ``least`` turns."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    start, turns = time.perf_counter(), 0
    while turns < least or time.perf_counter() - start < seconds * len(runs):
        turns += 1
        for name, run in runs.items():
            times[name] += _turn(run, most)
    return times


def _turn(run: Run, most: int) -> list[float]:
    times = [run()]
    while len(times) < most and sum(times) < TURN:
        times.append(run())
    return times[1:] or times

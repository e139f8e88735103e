"""Functions of tensors on a GPU, recorded as CUDA graphs when they come again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor

from classgrad._errors import InputError

T = TypeVar("T")

_SEEN = 1024  # keys remembered as having come once
_SAMPLE = 64  # one replay in so many is timed
_SKIPPED = 2  # replays before the first that is timed: they still set the graph up


class Unrecordable(InputError):
    """A function cannot be recorded as a CUDA graph."""


class Recordings:
    """Runs functions of device tensors, each under a key, and replays those that come again as CUDA graphs.

    The first call under a key simply runs the function: libraries set themselves up, optimizers make their state. The
    second records it and replays the recording, as do all that follow. So every call does the work once, and the first
    is as real as the others. Under one key a function must do the same operations on inputs of the same shape each
    time and never wait for the device. What it returns is overwritten by the next call of any key. On the CPU, and
    beyond ``limit`` recordings, functions simply run.

    :param generators: random generators that the functions draw from, besides torch's own.
    """

    def __init__(self, generators: Sequence[torch.Generator] = (), limit: int = 16) -> None:
        self._generators = generators
        self._limit = limit
        self._seen: set[Hashable] = set()
        self._recordings: dict[Hashable, _Recording] = {}
        self._pool: Any = None
        self._side: torch.cuda.Stream | None = None

    def __len__(self) -> int:
        """Give the number of recordings."""
        return len(self._recordings)

    def __contains__(self, key: Hashable) -> bool:
        """Tell whether a call under ``key`` would be a replay."""
        return key in self._recordings

    def __call__(self, key: Hashable, function: Callable[..., T], *inputs: Tensor) -> T:
        """Return ``function(*inputs)``."""
        recording = self._recordings.get(key)
        if recording is None:
            if not inputs[0].is_cuda:
                return function(*inputs)
            if key not in self._seen or len(self._recordings) >= self._limit:
                if len(self._seen) >= _SEEN:
                    self._seen.clear()
                self._seen.add(key)
                return self._first(function, inputs)
            recording = self._recordings[key] = self._record(function, inputs)
        return recording.replay(inputs)  # type: ignore[no-any-return]

    def busy_seconds(self) -> float:
        """Tell how long the GPU worked on replays: their number times the mean of those that were timed; waits for it.

        Each timed replay is taken from the end of what was launched before it to its own end, so the few microseconds
        of its launch count as work where nothing else was waiting.
        """
        return sum(recording.busy_seconds() for recording in self._recordings.values())

    def _stream(self) -> torch.cuda.Stream:
        """Return the stream at hand, or one of its own where that is the default one, which cannot be recorded."""
        current = torch.cuda.current_stream()
        if current != torch.cuda.default_stream():
            return current
        if self._side is None:
            self._side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        return self._side

    def _first(self, function: Callable[..., T], inputs: Sequence[Tensor]) -> T:
        """Run on the stream that will be recorded, so that whatever is set up for a stream is there."""
        stream, current = self._stream(), torch.cuda.current_stream()
        if stream == current:
            return function(*inputs)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            result = function(*inputs)
        current.wait_stream(stream)
        return result

    def _record(self, function: Callable[..., T], inputs: Sequence[Tensor]) -> _Recording:
        static = tuple(value.clone() for value in inputs)
        graph = torch.cuda.CUDAGraph()
        for generator in self._generators:
            graph.register_generator_state(generator)
        try:
            # thread_local: what other threads do meanwhile is no part of the recording and does no harm to it
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream(), capture_error_mode="thread_local"):
                outputs = function(*static)
        except RuntimeError as error:
            first = (str(error).splitlines() or [type(error).__name__])[0]
            raise Unrecordable(f"The step cannot be recorded as a CUDA graph ({first}).") from error
        self._pool = graph.pool()
        return _Recording(graph, static, outputs)


class _Recording:
    """A graph with the tensors it reads and writes, which stay where they are."""

    def __init__(self, graph: torch.cuda.CUDAGraph, inputs: Sequence[Tensor], outputs: Any) -> None:
        self._graph = graph
        self._inputs = inputs
        self._outputs = outputs
        self._replays = 0
        self._timed: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque(maxlen=_SAMPLE)

    def replay(self, inputs: Sequence[Tensor]) -> Any:
        for static, value in zip(self._inputs, inputs, strict=True):
            static.copy_(value)
        self._replays += 1
        timed = self._replays % _SAMPLE == _SKIPPED + 1
        with self._timer() if timed else nullcontext():
            self._graph.replay()
        return self._outputs

    def busy_seconds(self) -> float:
        times = []
        for start, stop in self._timed:
            stop.synchronize()
            times.append(start.elapsed_time(stop) / 1e3)
        return self._replays * sum(times) / len(times) if times else 0.0

    def _timer(self) -> _Timer:
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        self._timed.append((start, stop))
        return _Timer(start, stop)


class _Timer:
    """Puts an event before and one after what is launched within."""

    def __init__(self, start: torch.cuda.Event, stop: torch.cuda.Event) -> None:
        self._start = start
        self._stop = stop

    def __enter__(self) -> None:
        self._start.record()

    def __exit__(self, *_: object) -> None:
        self._stop.record()

"""Pieces of a step recorded as CUDA graphs, to be launched in one call of the host instead of many."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

_SEEN = 64
"""Places that are remembered as having come once."""
_KEPT = 2
"""Recordings of one piece: where a batch comes while the last is still there, places take turns."""
_MADE = 24
"""How often one piece is recorded before it is left as it is: places that never settle are not worth the effort."""


class Recorder:
    """Records on a stream of its own, without running anything.

    All recordings work in the same memory, so they must be replayed one after the other, on one stream. What they make
    and somebody holds on to stays theirs.
    """

    def __init__(self) -> None:
        self._stream: int | None = None
        self._side: torch.cuda.Stream | None = None
        self._pool: Any = None
        self._failed = False

    def suits(self, values: Tensor) -> bool:
        """Say whether work on these values, on the present stream, can be recorded or replayed."""
        if not values.is_cuda or self._failed or torch.cuda.is_current_stream_capturing():
            return False
        stream = torch._C._cuda_getCurrentRawStream(values.get_device())
        if self._stream is None:
            self._stream = stream
        return bool(self._stream == stream)

    def record(self, work: Callable[[], T]) -> tuple[Callable[[], None], T] | None:
        """Return what replays the work, and what it returned; None if it cannot be recorded, and nothing will be then.

        It must not wait for the device, and what it reads must be there at every replay, in the same places.
        """
        if self._side is None:
            self._side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.stream(self._side):
                # Not torch.cuda.graph, which would give back all free memory, so that nothing lies where it lay.
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    made = work()
                finally:
                    graph.capture_end()
        except RuntimeError:
            self._failed = True
            return None
        self._pool = graph.pool()
        return graph.replay, made


class Shelf(Generic[T]):
    """Recordings of one piece of work, each for the places in memory that it works on."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, T] = {}
        self._seen: dict[Hashable, None] = {}
        self._made = 0

    def get(self, places: Hashable) -> T | None:
        """Return the recording for these places, if there is one."""
        return self._kept.get(places)

    def due(self, places: Hashable) -> bool:
        """Say whether it is time to record: work in these places came before."""
        if places not in self._seen:
            self._seen[places] = None
            if len(self._seen) > _SEEN:
                del self._seen[next(iter(self._seen))]
            return False
        return self.open

    @property
    def open(self) -> bool:
        """Whether more recordings are wanted."""
        return self._made < _MADE

    def put(self, places: Hashable, recording: T) -> None:
        """Keep a recording, in place of the oldest if there are many."""
        self._made += 1
        self._kept[places] = recording
        if len(self._kept) > _KEPT:
            del self._kept[next(iter(self._kept))]

"""Pieces of a step recorded as CUDA graphs, to be launched in one call of the host instead of many."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

_SEEN = 64
"""Places that are remembered as having come once."""
_KEPT = 4
"""Recordings of one piece: an allocator may take turns between a few sets of places."""
_SMALL = 2**20
"""Bytes up to which torch's allocator gives out places among small ones, where anything may come in between."""
_MADE = 24
"""How often one piece is recorded before it is left as it is: places that never settle are not worth the effort."""


@dataclass
class Tally:
    """What became of the pieces of steps so far: each layer's work and the end of each step are one."""

    recorded: int = 0
    """Recordings that were made."""
    replayed: int = 0
    launched: int = 0
    """Launched operation by operation, since they had not come before in the same places; what never is recorded is not
    counted."""


class Recorder:
    """Records on a stream of its own, without running anything.

    All recordings work in the same memory, so they must be replayed one after the other, on one stream. What they make
    and somebody holds on to stays theirs.
    """

    def __init__(self, active: bool = True) -> None:
        self.tally = Tally()
        self._active = active
        self._stream: tuple[int, int] | None = None
        self._side: torch.cuda.Stream | None = None
        self._pool: Any = None
        self._stages: dict[object, Tensor] = {}

    def knows(self, values: Tensor) -> bool:
        """Say whether they are on a device whose work can be recorded, and is not being recorded already."""
        return values.is_cuda and not torch.cuda.is_current_stream_capturing()

    def ready(self, values: Tensor) -> bool:
        """Say whether work on such values can be recorded or replayed now, on the present stream."""
        if not self._active:
            return False
        device = values.get_device()
        stream = (device, torch._C._cuda_getCurrentRawStream(device))
        if self._stream is None:
            self._stream = stream
        return self._stream == stream

    def stage(self, number: int, like: Tensor) -> Tensor:
        """Return a place for small values, one that all recordings share: good until it is filled again."""
        key = (number, like.device)
        if key not in self._stages:
            self._stages[key] = torch.empty(-(-_SMALL // 16) * 16, dtype=torch.uint8, device=like.device)
        return self._stages[key].view(like.dtype).as_strided(like.shape, like.stride())

    def place(self, values: Tensor) -> Hashable:
        """Say where values lie."""
        return values.data_ptr()

    def record(self, work: Callable[[], T]) -> tuple[Callable[[], None], T] | None:
        """Return what replays the work, and what it returned; None if it cannot be recorded, and nothing will be then.

        It must not wait for the device, and what it reads must be there at every replay, in the same places.
        """
        if self._side is None and self._stream is not None:
            # Its own: what cuBLAS holds for a stream must lie in the memory of these recordings and no others.
            self._side = torch.cuda.Stream(self._stream[0])  # type: ignore[no-untyped-call]
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
            self._active = False
            return None
        self._pool = graph.pool()
        self.tally.recorded += 1
        return graph.replay, made


def is_small(values: Tensor) -> bool:
    """Whether values are not to be expected where they lay before; copying them takes next to no time."""
    return values.untyped_storage().nbytes() <= _SMALL


@dataclass(frozen=True)
class Static:
    """Where recordings read those of their inputs that are small."""

    numbers: Sequence[int]
    """Which of the inputs these are."""
    held: Sequence[Tensor]

    @classmethod
    def of(cls, inputs: Sequence[Tensor], place: Callable[[int, Tensor], Tensor]) -> Static:
        """Return places for inputs like these, with them in it; ``place(number, values)`` gives one for such values."""
        numbers = [number for number, values in enumerate(inputs) if is_small(values)]
        bases = [_base(inputs[number]) for number in numbers]
        out = cls(numbers, [place(number, base) for number, base in zip(numbers, bases, strict=True)])
        out.fill(inputs)
        return out

    def stand_ins(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Return the inputs as a recording is to read them."""
        out = list(inputs)
        for number, held in zip(self.numbers, self.held, strict=True):
            out[number] = held.expand(inputs[number].shape)
        return out

    def fill(self, inputs: Sequence[Tensor]) -> None:
        """Bring inputs to where a recording reads them."""
        if self.numbers:
            torch._foreach_copy_(list(self.held), [_base(inputs[number]) for number in self.numbers])


def _base(values: Tensor) -> Tensor:
    """Return values without the dimensions along which they are repeated."""
    strides = values.stride()
    if 0 not in strides:
        return values
    shape = [1 if step == 0 else size for size, step in zip(values.shape, strides, strict=True)]
    return values.as_strided(shape, strides)


class Shelf(Generic[T]):
    """Recordings of one piece of work, each for the places in memory that it works on."""

    def __init__(self, kept: int = _KEPT) -> None:
        self._room = kept
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
        if len(self._kept) > self._room:
            del self._kept[next(iter(self._kept))]

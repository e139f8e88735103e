"""Pieces of a step recorded as CUDA graphs, to be launched in one call of the host instead of many."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from classgrad.gradients.terms._scratch import is_small, small_memory

T = TypeVar("T")

_SEEN = 64
"""Places that are remembered as having come once."""
_KEPT = 4
"""Recordings of one piece: an allocator may take turns between a few sets of places."""
_MADE = 24
"""How often one piece is recorded before it is left as it is: places that never settle are not worth the effort."""
_LIBRARIES = frozenset(
    getattr(torch.ops.aten, name)
    for name in ("addbmm", "addmm", "addmv", "baddbmm", "bmm", "convolution", "convolution_backward", "dot", "mm", "mv")
)
"""Operations of cuBLAS and cuDNN. They take memory that a recording would have to hold, tens of MB for each stream, and
are one launch each anyway."""


@dataclass
class Tally:
    """What became of the pieces of steps so far: each layer's work and the end of each step are one.

    Of a step that makes one plain backward pass, what comes before that and what comes after it are.
    """

    recorded: int = 0
    """Recordings that were made."""
    replayed: int = 0
    launched: int = 0
    """Launched operation by operation: they had not come before in the same places, are left to libraries, or there is
    nothing to launch for them before the end. Layers of kinds that are never recorded are not counted."""


class Recorder:
    """Records on a stream of its own, without running anything.

    All recordings work in the same memory, so they must be replayed one after the other, on one stream. What one of
    them allocates is good until another is replayed; what is to stay must be written to memory from elsewhere.
    """

    def __init__(self, active: bool = True) -> None:
        self.tally = Tally()
        self._active = active
        self._stream: tuple[int, int] | None = None
        self._side: torch.cuda.Stream | None = None
        self._first: torch.cuda.CUDAGraph | None = None
        """Kept for its memory, which is that of all others too and would be lost if none of them were left."""
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
            self._stages[key] = small_memory(like.device)
        return self._stages[key].view(like.dtype).as_strided(like.shape, like.stride())

    def place(self, values: Tensor) -> Hashable:
        """Say where values lie."""
        return values.data_ptr()

    def record(self, work: Callable[[], T]) -> tuple[Callable[[], None], T] | None:
        """Return what replays the work, and what it returned; None if it is not to be recorded.

        It must not wait for the device, and what it reads must be there at every replay, in the same places. If it
        fails, nothing will be recorded any more.
        """

        def watched() -> T:
            with _NoLibraries():  # type: ignore[no-untyped-call]
                return work()

        try:
            recorded = self._capture(watched)
        except _NeedsLibrary:
            return None
        except RuntimeError:
            self._active = False
            self._recover()
            return None
        self.tally.recorded += 1
        return recorded

    def _capture(self, work: Callable[[], T]) -> tuple[Callable[[], None], T]:
        if self._side is None and self._stream is not None:
            self._side = torch.cuda.Stream(self._stream[0])  # type: ignore[no-untyped-call]
        graph = torch.cuda.CUDAGraph()
        pool = None if self._first is None else self._first.pool()
        with torch.cuda.stream(self._side), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a graph without operations: work that was broken off
            # Not torch.cuda.graph, which would give back all free memory, so that nothing lies where it lay.
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                made = work()
            finally:
                graph.capture_end()
        if self._first is None:
            self._first = graph
        return super(torch.cuda.CUDAGraph, graph).replay, made  # torch's own in Python looks for what we do not use

    def _recover(self) -> None:
        """Have random numbers be drawn again: a capture that failed leaves the generator waiting for its end."""
        if self._stream is not None:
            generator = torch.cuda.default_generators[self._stream[0]]
            generator.graphsafe_set_state(generator.clone_state())


class _NeedsLibrary(Exception):
    """Work has operations that are not recorded."""


class _NoLibraries(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function.overloadpacket in _LIBRARIES and _has_libraries(args[0]):
            raise _NeedsLibrary
        return function(*args, **(kwargs or {}))


def _has_libraries(values: Tensor) -> bool:
    return values.is_cuda


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
        out = cls(numbers, [place(number, base(inputs[number])) for number in numbers])
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
            torch._foreach_copy_(list(self.held), [base(inputs[number]) for number in self.numbers])


class Written:
    """Where recordings write directions.

    These are the user's from then on, who may keep them: small ones are written elsewhere and copied.
    """

    def __init__(self, outs: Sequence[Tensor]) -> None:
        self._own = [torch.empty_like(out) if is_small(out) else None for out in outs]

    def places(self, outs: Sequence[Tensor]) -> list[Tensor]:
        """Return where a recording is to write."""
        return [out if own is None else own for own, out in zip(self._own, outs, strict=True)]

    def found(self, outs: Sequence[Tensor]) -> list[Tensor]:
        """Return the directions after a replay."""
        return [out if own is None else own.clone() for own, out in zip(self._own, outs, strict=True)]


def base(values: Tensor) -> Tensor:
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
        self._left = _MADE

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
        return self._left > 0

    def close(self) -> None:
        """Want no more."""
        self._left = 0

    def put(self, places: Hashable, recording: T) -> None:
        """Keep a recording, in place of the oldest if there are many."""
        self._left -= 1
        self._kept[places] = recording
        if len(self._kept) > self._room:
            del self._kept[next(iter(self._kept))]

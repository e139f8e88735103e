"""How a kernel is checked and timed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

DEVICE = "cuda"
Inputs = dict[str, Tensor]
Way = Callable[[Inputs], object]
ROTATED = 200 * 2**20
"""Bytes of inputs to go through before the first come again: several times the cache."""


@dataclass
class Case:
    name: str
    make: Callable[[], Inputs]
    ours: Way
    now: Way | None
    plain: Way | None
    exact: Callable[[Inputs], dict[str, Tensor]]
    """What ours should be, in double precision, by name."""
    found: Callable[[object], dict[str, Tensor]]
    bytes: float = 0.0
    flops: float = 0.0


def replayed(way: Way, sets: list[Inputs], target: float = 0.004) -> float:
    """Return the median seconds of one call, from a graph that calls the way on every set."""
    for inputs in sets[:2]:
        way(inputs)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        way(sets[0])
        stream.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            for inputs in sets:
                way(inputs)
    torch.cuda.synchronize()
    times: list[float] = []
    while len(times) < 5 or (sum(times) * len(sets) < target and len(times) < 50):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) * 1e-3 / len(sets))
    return sorted(times[1:])[len(times[1:]) // 2]


def measure(case: Case) -> str:
    first = case.make()
    size = sum(v.numel() * v.element_size() for v in first.values())
    sets = [first, *(case.make() for _ in range(min(7, ROTATED // max(1, size))))]
    found = case.found(case.ours(first))
    exact = case.exact(first)
    errors = []
    for name, wanted in exact.items():
        gap = (found[name].double().reshape(wanted.shape) - wanted).abs().max()
        errors.append((gap / wanted.abs().max().clamp_min(1e-300)).item())
    del found, exact
    cells = []
    seconds = replayed(case.ours, sets)
    cells.append(f"{seconds * 1e6:9.1f}")
    for way in (case.now, case.plain):
        if way is None:
            cells.append(f"{'–':>9}{'':7}")
            continue
        try:
            other = replayed(way, sets)
            cells.append(f"{other * 1e6:9.1f}{f'{other / seconds:5.2f}x':>7}")
        except Exception as error:
            cells.append(f"{type(error).__name__:>16.16}")
            torch.cuda.synchronize()
    rate = (
        f"{case.flops / seconds * 1e-12:7.1f} TFLOP/s" if case.flops else f"{case.bytes / seconds * 1e-9:7.0f} GB/s   "
    )
    return " ".join([f"{case.name:<44}", *cells, rate, f"{max(errors):8.1e}"])


def normal(*shape: int, format: torch.memory_format = torch.contiguous_format) -> Tensor:
    return torch.randn(*shape, device=DEVICE).contiguous(memory_format=format)


def members_of(sizes: list[int]) -> Tensor:
    index = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes)).to(DEVICE)
    return F.one_hot(index, len(sizes)).T.float()


def name(sizes: list[int]) -> str:
    return f"{len(sizes)}x{sizes[0]}" if min(sizes) == max(sizes) else f"{len(sizes)} of {min(sizes)}-{max(sizes)}"

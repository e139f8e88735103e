"""How many examples of the whole training set go through the network at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

ON_CPU = 4096
"""Most examples at once on a CPU: more are no faster."""

_IN_CACHE, _LEAST = 2**20, 16
"""Numbers in the inputs of a piece, with whose activations a CPU's caches still help, and its fewest examples."""

_SHARE = 4  # the part of a GPU's memory that one pass may take: the rest is for class gradients and for other runs
_PROBE = 64

Chunk = int | Literal["auto"]


def resolve_chunk(chunk: Chunk, run: Callable[[Tensor], object], order: Tensor, width: int, least: int) -> int:
    """Give the number of examples to run at once, each of ``width`` numbers.

    ``"auto"`` is on a GPU the most whose forward and backward pass ``run`` takes a quarter of its memory, as two small
    ones tell: all of ``order`` or a power of two. It depends on the network and the kind of GPU, not on what else is
    using it. On a CPU all that do not go at once go in pieces that caches help with, of ``least`` examples or more.
    """
    if chunk != "auto":
        return chunk
    if not order.is_cuda:
        piece = 1 << (max(_LEAST, _IN_CACHE // max(1, width)).bit_length() - 1)
        return ON_CPU if len(order) <= ON_CPU else max(least, min(ON_CPU, piece))
    if len(order) <= 2 * _PROBE:
        return 2 * _PROBE
    run(order[:_PROBE])  # libraries set themselves up
    small, large = (_peak(run, order[:size]) for size in (_PROBE, 2 * _PROBE))
    each = max(1, (large - small) // _PROBE)
    fits = torch.cuda.get_device_properties(order.device).total_memory // _SHARE // each
    return len(order) if fits >= len(order) else max(_PROBE, 1 << (int(fits).bit_length() - 1))


def _peak(run: Callable[[Tensor], object], part: Tensor) -> int:
    torch.cuda.synchronize(part.device)
    torch.cuda.reset_peak_memory_stats(part.device)
    before = torch.cuda.memory_allocated(part.device)
    run(part)
    return int(torch.cuda.max_memory_allocated(part.device)) - before

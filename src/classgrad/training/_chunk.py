"""How many examples of the whole training set go through the network at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

ON_CPU = 4096
"""Examples at once on a CPU: more are no faster."""

_SHARE = 4  # the part of a GPU's memory that one pass may take: the rest is for class gradients and for other runs
_PROBE = 64

Chunk = int | Literal["auto"]


def resolve_chunk(chunk: Chunk, run: Callable[[Tensor], object], order: Tensor) -> int:
    """Give the number of examples to run at once.

    ``"auto"`` is the most whose forward and backward pass ``run`` takes a quarter of the GPU's memory, as two small
    ones tell: all of ``order`` or a power of two. It depends on the network and the kind of GPU, not on what else is
    using it.
    """
    if chunk != "auto":
        return chunk
    if not order.is_cuda:
        return ON_CPU
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

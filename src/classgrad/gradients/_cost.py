"""Which of the equal ways to a layer's class gradients is the cheapest.

The choice depends on shapes, class counts and the kind of device alone, never on a clock, so that a run repeats to the
bit. The constants are the measured rates of one machine of each kind; only their ratios matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from classgrad.gradients._layout import ClassLayout


@dataclass(frozen=True)
class Rates:
    """What a device does per second, and what a call costs."""

    flops: float
    """Multiply-adds of a large matrix product."""
    bytes: float
    """Bytes moved through memory."""
    call: float
    """Seconds per small operation, whatever its size."""
    conv_call: float
    """Seconds per weight gradient of a convolution, whatever its size."""
    row: float
    """Seconds per row of a class: a product with a small result is a chain over its rows, however many units idle."""
    rows_bytes: int
    """Bytes of patches laid out as rows at a time: as many as stay close to the arithmetic units."""


_RATES = {
    "cpu": Rates(flops=5e10, bytes=1e10, call=5e-6, conv_call=1e-4, row=0.0, rows_bytes=2**23),
    "cuda": Rates(flops=1e14, bytes=2e12, call=8e-6, conv_call=3e-5, row=2.5e-9, rows_bytes=2**30),
}


_KERNEL_ROWS = 512
"""Rows to a class from which on the kernel for convolutions outdoes cuDNN and patches laid out as rows."""


_WHOLE_BATCH = 2048
"""Rows up to which the products of all pairs of a batch are no more work than many small operations."""

_LEAST_BLOCK = 64
"""Rows of a block that make a product worth its while."""


def rates(device: str) -> Rates:
    """Return the rates of a kind of device; an unknown accelerator is taken for a GPU."""
    return _RATES.get(device, _RATES["cuda"])


def _calls(layout: ClassLayout) -> int:
    return 1 if layout.equal else len(layout)


@dataclass(frozen=True)
class Pairs:
    """A way to the products of all pairs of rows of a class.

    Classes of a single row need none (``"single"``); those of equal size lie side by side (``"equal"``), others in
    blocks of rows, each multiplied with itself and the next (``"blocks"``); or they are taken one after the other
    (``"apart"``).
    """

    way: Literal["single", "equal", "blocks", "apart"]
    block: int
    """Rows that are multiplied with each other."""
    count: int
    """Products made."""
    calls: int

    def seconds(self, width: int, r: Rates) -> float:
        """Return what they take for rows of a and b of this width together."""
        return self.count * width / r.flops + 16 * self.count / r.bytes + 3 * self.calls * r.call


def pairs_of(sizes: Sequence[int], positions: int, width: int, device: str) -> Pairs:
    """Return the cheapest way to the products of all pairs of rows within classes."""
    rows, largest = sum(sizes) * positions, max(sizes, default=0) * positions
    if largest <= 1:
        return Pairs("single", 1, 0, 1)
    if min(sizes) == max(sizes) and (largest >= _LEAST_BLOCK or rows <= _WHOLE_BATCH):
        return Pairs("equal", largest, rows * largest, 1)
    apart = Pairs("apart", largest, sum((size * positions) ** 2 for size in sizes), len(sizes))
    block = rows if rows <= _WHOLE_BATCH else max(largest, _LEAST_BLOCK)
    blocks = Pairs("blocks", block, rows * min(rows, 2 * block), 2)
    return min(blocks, apart, key=lambda way: way.seconds(width, rates(device)))


def ghost_is_cheaper(
    positions: int, inner: int, outer: int, layout: ClassLayout, device: str, *, gram: bool = False
) -> bool:
    """Whether norms (or the Gram) without gradients beat making all class gradients of an (outer x inner) weight.

    Keeping them writes L gradients, reads them for the norms and again for the weighted sum; the ghost way needs the
    products of all pairs of rows of a class (for the Gram, of the batch), and the weighted gradient from scratch. The
    ordinary product that makes either the class gradients or their weighted sum is the same.
    """
    r = rates(device)
    rows = layout.examples * positions
    pairs = Pairs("blocks", rows, rows**2, 1) if gram else pairs_of(layout.sizes, positions, inner + outer, device)
    ghost = pairs.seconds(inner + outer, r)
    kept = 12 * len(layout) * inner * outer / r.bytes + _calls(layout) * r.call
    if gram:
        kept += len(layout) ** 2 * inner * outer / r.flops
    return ghost < kept


def rows_are_cheaper(positions: int, inner: int, outer: int, layout: ClassLayout, device: str) -> bool:
    """Whether a convolution's class gradients are best made from its patches laid out as rows.

    The rows cost a copy of every patch; the other way is one ordinary weight gradient per class.
    """
    r = rates(device)
    copy = 8 * layout.examples * positions * (inner + outer) / r.bytes
    chain = r.row * layout.largest * positions
    return copy + chain + _calls(layout) * r.call < len(layout) * r.conv_call


def kernel_is_cheaper(positions: int, layout: ClassLayout) -> bool:
    """Whether a convolution's class gradients are best gathered by the kernel, which needs many rows to each class."""
    return layout.examples * positions >= _KERNEL_ROWS * max(1, len(layout))

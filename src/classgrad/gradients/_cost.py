"""Which of the equal ways to a layer's class gradients is the cheapest.

The choice depends on shapes, class counts and the kind of device alone, never on a clock, so that a run repeats to the
bit. The constants are the measured rates of one machine of each kind (docs/performance.md); only their ratios matter.
"""

from __future__ import annotations

from dataclasses import dataclass

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


_RATES = {
    "cpu": Rates(flops=5e10, bytes=1e10, call=5e-6, conv_call=1e-4),
    "cuda": Rates(flops=1e14, bytes=2e12, call=8e-6, conv_call=3e-5),
}


def _rates(device: str) -> Rates:
    return _RATES.get(device, _RATES["cuda"])


def _calls(layout: ClassLayout) -> int:
    return 1 if layout.equal else len(layout)


def ghost_is_cheaper(positions: int, inner: int, outer: int, layout: ClassLayout, device: str) -> bool:
    """Whether norms without gradients beat making all class gradients of an (outer x inner) weight.

    Keeping them writes L gradients, reads them for the norms and again for the weighted sum; the ghost norms need the
    Gram matrices of the classes' rows, and the weighted gradient one more ordinary product.
    """
    rates = _rates(device)
    total = layout.examples * positions
    pairs = sum((size * positions) ** 2 for size in layout.sizes)
    product = total * inner * outer / rates.flops
    ghost = pairs * (inner + outer) / rates.flops + 16 * pairs / rates.bytes + 3 * _calls(layout) * rates.call
    kept = 12 * len(layout) * inner * outer / rates.bytes + _calls(layout) * rates.call
    return ghost + product < kept + product


def rows_are_cheaper(positions: int, inner: int, outer: int, layout: ClassLayout, device: str) -> bool:
    """Whether a convolution's class gradients are best made from its patches laid out as rows.

    The rows cost a copy of inner/channels times the input; the other way is one ordinary weight gradient per class.
    """
    rates = _rates(device)
    copy = 8 * layout.examples * positions * (inner + outer) / rates.bytes
    return copy + _calls(layout) * rates.call < len(layout) * rates.conv_call

"""Which of the equal ways to a layer's class gradients is the cheapest.

The choice depends on shapes, class counts and the kind of device alone, never on a clock, so that a run repeats to the
bit. The constants are the measured rates of one machine of each kind; only their ratios matter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Literal, TypeVar, cast

from torch import Tensor

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
"""Rows to a class from which on the kernel for convolutions outdoes cuDNN and patches laid out as rows.

For layers so narrow that laying them out takes far longer than multiplying them, an eighth of that does.
"""


_WHOLE_BATCH = 2048
"""Rows up to which the products of all pairs of a batch are no more work than many small operations."""

_LEAST_BLOCK = 64
"""Rows of a block that make a product worth its while."""

_TILES = {64: 7e13, 32: 2.8e13, 16: 1.1e13}
"""Of the kernel for pairs of rows on a GPU: the sizes of its tiles and the multiply-adds per second with each."""

RECORDED = "recorded"
"""The kind of a GPU whose work is recorded, to be launched at once later on."""

_ROWS_CALLS = 6
"""Small operations that patches laid out as rows take beyond the kernel's one."""

_GATHER_CALLS = 4
"""Small operations that bringing both sides into class order takes, with what they are split and added up for."""

_WEIGHED_CALLS = 6
"""Small operations that weighing examples and multiplying them takes beyond the kernel's one."""

_KERNEL_FLOPS = 2e13
"""Multiply-adds per second of the kernel for products."""


def kind_of(values: Tensor, layout: ClassLayout) -> str:
    """Return the kind of device that is to work on these values.

    Whether it records them is asked of the layout, not of the device: a run that goes on elsewhere makes some steps
    operation by operation that were replayed before, and they must come out the same to the last bit.
    """
    return RECORDED if layout.recorded and values.is_cuda else values.device.type


def rates(device: str) -> Rates:
    """Return the rates of a kind of device; an unknown accelerator is taken for a GPU."""
    return _RATES.get(device, _RATES["cuda"])


def _calls(layout: ClassLayout) -> int:
    return 1 if layout.equal else len(layout)


Cost = tuple[int, int, int, ClassLayout, str]
"""What the cost of a layer depends on: positions, width of its input rows and output rows, classes, kind of device."""

Sizes = Mapping[int, int]
"""How many classes there are of each number of examples."""


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


def pairs_of(sizes: Sizes, positions: int, width: int, device: str) -> Pairs:
    """Return the cheapest way to the products of all pairs of rows within classes."""
    classes, rows = sum(sizes.values()), positions * sum(size * count for size, count in sizes.items())
    largest = max(sizes, default=0) * positions
    if largest <= 1:
        return Pairs("single", 1, 0, 1)
    if len(sizes) == 1 and (largest >= _LEAST_BLOCK or rows <= _WHOLE_BATCH):
        return Pairs("equal", largest, rows * largest, 1)
    pairs = sum(count * (size * positions) ** 2 for size, count in sizes.items())
    apart = Pairs("apart", largest, pairs, classes)
    block = rows if rows <= _WHOLE_BATCH else max(largest, _LEAST_BLOCK)
    blocks = Pairs("blocks", block, rows * min(rows, 2 * block), 2)
    return min(blocks, apart, key=lambda way: way.seconds(width, rates(device)))


def tile_of(layout: ClassLayout, positions: int) -> tuple[int, float]:
    """Return the rows of a tile with which the kernel makes all pairs of rows within classes fastest.

    With it comes what these take, in seconds per unit of width. It makes pairs of tiles within a class, those of tiles
    that are not full included, each but once.
    """
    return layout.memo.recall((tile_of, positions), _best_tile, layout.make_up.tally, positions)


def _best_tile(sizes: Sizes, positions: int) -> tuple[int, float]:
    def seconds(tile: int) -> float:
        tiles = ((-(-size * positions // tile), count) for size, count in sizes.items())
        return tile**2 * sum(number * (number + 1) // 2 * count for number, count in tiles) / _TILES[tile]

    best = min(_TILES, key=seconds)
    return best, seconds(best)


Decision = TypeVar("Decision", bound=Callable[..., bool])


def _remembered(decide: Decision) -> Decision:
    """Decide once for each shape of a layer and make-up of the classes."""

    def recall(positions: int, inner: int, outer: int, layout: ClassLayout, *rest: object, **wish: bool) -> bool:
        key = (decide, positions, inner, outer, *rest, *wish.values())
        return layout.memo.recall(key, decide, positions, inner, outer, layout, *rest, **wish)

    return cast(Decision, wraps(decide)(recall))


@_remembered
def ghost_is_cheaper(
    positions: int, inner: int, outer: int, layout: ClassLayout, device: str, *, gram: bool = False
) -> bool:
    """Whether norms (or the Gram) without gradients beat making all class gradients of an (outer x inner) weight.

    Keeping them writes L gradients, reads them for the norms and again for the weighted sum; the ghost way needs the
    products of all pairs of rows of a class (for the Gram, of the batch), and the weighted gradient from scratch. The
    ordinary product that makes either the class gradients or their weighted sum is the same.
    """
    r = rates(device)
    rows, width = layout.examples * positions, inner + outer
    if gram:
        ghost = Pairs("blocks", rows, rows**2, 1).seconds(width, r)
    elif device != "cpu":
        ghost = tile_of(layout, positions)[1] * width + 3 * r.call
    else:
        ghost = pairs_of(layout.make_up.tally, positions, width, device).seconds(width, r)
    products = r.call if layout.equal else min(_unequal(rows, inner, outer, len(layout), device))
    kept = 12 * len(layout) * inner * outer / r.bytes + products
    if gram:
        kept += len(layout) ** 2 * inner * outer / r.flops
    return ghost < kept


def _unequal(rows: int, inner: int, outer: int, classes: int, device: str) -> tuple[float, float]:
    """Return what products of classes of different sizes cost beyond one of all rows: one by one, and by the kernel."""
    r = rates(device)
    one_by_one = classes * r.call
    if device == "cpu":
        return one_by_one, math.inf
    return one_by_one, _longer(rows, inner, outer) + 4 * classes * inner * outer / r.bytes + 6 * r.call


@_remembered
def kernel_makes_unequal(rows: int, inner: int, outer: int, layout: ClassLayout) -> bool:
    """Whether on a GPU the kernel for products makes those of classes of different sizes sooner than one by one."""
    one_by_one, kernel = _unequal(rows, inner, outer, len(layout), "cuda")
    return layout.equal is None and kernel < one_by_one


@_remembered
def kernel_gathers(rows: int, inner: int, outer: int, layout: ClassLayout, device: str, *, shuffled: bool) -> bool:
    """Whether the kernel for products makes those of a linear layer sooner for gathering shuffled examples by itself.

    That spares operations, which is what counts on a GPU unless they are recorded.
    """
    return shuffled and device == "cuda" and _longer(rows, inner, outer) < _GATHER_CALLS * rates(device).call


@_remembered
def kernel_weighs(positions: int, inner: int, outer: int, layout: ClassLayout, device: str) -> bool:
    """Whether the kernel for products makes a weighted gradient sooner for weighing the examples by itself.

    As above, that spares operations.
    """
    longer = _longer(layout.examples * positions, inner, outer)
    return device == "cuda" and longer < _WEIGHED_CALLS * rates(device).call


@_remembered
def rows_are_cheaper(positions: int, inner: int, outer: int, layout: ClassLayout, device: str) -> bool:
    """Whether a convolution's class gradients are best made from its patches laid out as rows.

    The rows cost a copy of every patch; the other way is one ordinary weight gradient per class.
    """
    r = rates(device)
    copy = _copied(layout.examples * positions, inner, outer, device)
    chain = r.row * layout.make_up.largest * positions
    return copy + chain + _calls(layout) * r.call < len(layout) * r.conv_call


def has_many_rows(positions: int, inner: int, outer: int, layout: ClassLayout) -> bool:
    """Whether there are so many rows to each class that the kernel for convolutions outdoes all other ways."""
    rows = layout.examples * positions
    narrow = 2 * _longer(rows, inner, outer) < _copied(rows, inner, outer, "cuda")
    return rows >= (_KERNEL_ROWS // 8 if narrow else _KERNEL_ROWS) * max(1, len(layout))


def kernel_is_cheaper(positions: int, inner: int, outer: int, layout: ClassLayout, device: str) -> bool:
    """Whether a convolution's class gradients are best gathered by the kernel.

    It needs many rows to each class, or little work in all: it is one operation where the other ways are several, which
    is what counts on a GPU unless they are recorded.
    """
    longer = _longer(layout.examples * positions, inner, outer)
    return has_many_rows(positions, inner, outer, layout) or (
        device == "cuda" and longer < _ROWS_CALLS * rates(device).call
    )


def _copied(rows: int, inner: int, outer: int, device: str) -> float:
    """Return the seconds it takes to lay out a convolution's patches as rows, and its output gradients beside them."""
    return 8 * rows * (inner + outer) / rates(device).bytes


def _longer(rows: int, inner: int, outer: int) -> float:
    """Return the seconds that the kernel for products takes longer than an ordinary product of as many rows."""
    return rows * inner * outer * (1 / _KERNEL_FLOPS - 1 / rates("cuda").flops)

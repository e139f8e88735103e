"""Convolutions and transposed convolutions in one, two and three dimensions."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd

from classgrad.gradients import kernels
from classgrad.gradients._layout import ClassLayout
from classgrad.gradients.layers._linear import ExamplesTerm
from classgrad.gradients.layers._registry import LayerRule, add_rule
from classgrad.gradients.layers._taps import Call
from classgrad.gradients.terms._cost import (
    ghost_is_cheaper,
    has_many_rows,
    kernel_is_cheaper,
    kernel_weighs,
    kind_of,
    rows_are_cheaper,
)
from classgrad.gradients.terms._scratch import Scratch
from classgrad.gradients.terms._terms import Dense, Memory, Sums, Term


class Sliding(NamedTuple):
    """What decides about a convolution beside its input."""

    weight: Tensor
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    transposed: bool

    @property
    def kernel_size(self) -> tuple[int, ...]:
        """Of each dimension that it slides along."""
        return tuple(self.weight.shape[2:])


def padded(x: Tensor, padding: tuple[int, ...], scratch: Scratch, last: bool = False) -> Tensor:
    """Return x between zeros, as many at either end of each dimension as its padding.

    With ``last`` the channels of each pixel lie side by side in memory.
    """
    examples, channels, *sizes = x.shape
    wide = [size + 2 * p for size, p in zip(sizes, padding, strict=True)]
    shape = (examples, *wide, channels) if last else (examples, channels, *wide)
    out = scratch.place("padded", shape, x).zero_()
    out = out.movedim(-1, 1) if last else out
    inside = out
    for dimension, (size, p) in enumerate(zip(x.shape[2:], padding, strict=True), 2):
        inside = inside.narrow(dimension, p, size)
    inside.copy_(x)
    return out


def windows(x: Tensor, size: torch.Size, how: Sliding, scratch: Scratch, last: bool = False) -> Tensor:
    """Return the patches of a padded x that the kernel sees, as rows (N, positions, channels × kernel).

    ``size`` is the number of positions per dimension. One strided view and one copy. With ``last`` rows are kernel ×
    channels: where those of a pixel lie side by side, whole lines are copied, which takes a CPU a tenth of the time.
    """
    shape, strides, flat = _windowed(x.shape, x.stride(), size, how.kernel_size, how.stride, how.dilation)
    patches = x.as_strided(shape, strides, x.storage_offset())
    if last:
        patches = patches.movedim(1 + len(size), -1)
        return scratch.place("rows", patches.shape, x).copy_(patches).view(flat)
    if x.device.type == "cpu":
        return by_columns("rows", patches, 1 + len(size), scratch).view(flat)
    return scratch.place("rows", shape, x).copy_(patches).view(flat)


def by_columns(use: str, values: Tensor, kept: int, scratch: Scratch) -> Tensor:
    """Return a copy whose first ``kept`` dimensions lie side by side in memory, behind the others.

    Positions follow each other in an image too, so a CPU copies whole lines of it.
    """
    dims = range(values.dim())
    turned = values.permute(*dims[kept:], *dims[:kept])
    copied = scratch.place(use, turned.shape, values).copy_(turned)
    return copied.permute(*dims[values.dim() - kept :], *dims[: values.dim() - kept])


Shape = tuple[int, ...]


@lru_cache
def _windowed(
    x: Shape, x_strides: Shape, size: Shape, kernel: Shape, stride: Shape, dilation: Shape
) -> tuple[Shape, Shape, Shape]:
    """Return shape and strides of the view of all patches, and the shape of the rows they make."""
    strides = (
        x_strides[0],
        *(s * step for s, step in zip(x_strides[2:], stride, strict=True)),
        x_strides[1],
        *(s * gap for s, gap in zip(x_strides[2:], dilation, strict=True)),
    )
    return (x[0], *size, x[1], *kernel), strides, (x[0], math.prod(size), x[1] * math.prod(kernel))


class _Way(NamedTuple):
    """How a convolution's class gradients are made; it follows from shapes, places in memory and class sizes."""

    positions: int
    inner: int
    device: str
    by_rows: bool
    by_kernel: bool
    weighs: bool


def _way_of(how: Sliding, a: Tensor, b: Tensor, layout: ClassLayout, tf32: bool) -> _Way:
    shape = how.weight.shape
    positions, inner = (a if how.transposed else b).shape[2:].numel(), shape[1:].numel()
    cost = (positions, inner, shape[0], layout, kind_of(a, layout))
    plain = how.groups == 1
    # the kernel takes convolutions in two dimensions, without gaps in memory, in TF32
    suits = plain and tf32 and len(shape) == 4 and not how.transposed and kernels.available(b)
    suits = suits and all(map(kernels.lies_by_examples, (a, b)))
    by_rows, by_kernel = plain and rows_are_cheaper(*cost), suits and kernel_is_cheaper(*cost)
    return _Way(positions, inner, cost[4], by_rows, by_kernel, suits and kernel_weighs(*cost))


class ConvTerm(ExamplesTerm):
    """A convolution's weight, from its input a and output gradient b.

    The kernel slides over one side and the other has one row per position: a and b, or b and a if transposed.
    """

    def __init__(
        self, how: Sliding, a: Tensor, b: Tensor, padding: tuple[int, ...], layout: ClassLayout, memory: Memory
    ) -> None:
        weight = how.weight
        tf32 = memory.convolutions == "tf32"
        places = (a.shape, a.stride(), b.shape, b.stride(), b.dtype, b.device)
        key = (_way_of, how.transposed, how.groups, weight.shape, *places, tf32, layout.recorded)
        way = layout.memo.recall(key, _way_of, how, a, b, layout, tf32)
        cost = (way.positions, way.inner, weight.shape[0], layout, way.device)
        super().__init__(a, b, layout, weight.shape, memory, cost, way.positions * way.inner * a.element_size())
        self.how = how
        self.padding = padding
        self.by_rows = way.by_rows
        self.by_kernel = way.by_kernel
        self._weighs = way.weighs

    def as_rows(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """Return examples as rows, (N, positions, channels × kernel) and (N, positions, channels)."""
        return self._as_rows(a, b, last=False)

    def paired(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Return a range of classes as rows, on a CPU (N, positions, kernel × channels)."""
        return self._as_rows(*self.grouped(start, stop), last=self.b.device.type == "cpu")

    def _as_rows(self, a: Tensor, b: Tensor, last: bool) -> tuple[Tensor, Tensor]:
        slid, rows = (b, a) if self.how.transposed else (a, b)
        scratch = self.memory.scratch
        if any(self.padding) or last:
            slid = padded(slid, self.padding, scratch, last)
        patches, rows = windows(slid, rows.shape[2:], self.how, scratch, last), rows.flatten(2).transpose(1, 2)
        return patches, by_columns("columns", rows, 2, scratch) if rows.device.type == "cpu" else rows

    def _output_padding(self) -> list[int]:
        how = self.how
        if not how.transposed:
            return [0] * len(self.padding)
        given = (how.stride, self.padding, how.dilation, how.kernel_size)
        sizes = zip(self.b.shape[2:], self.a.shape[2:], *given, strict=True)
        return [out - ((n - 1) * s - 2 * p + d * (k - 1) + 1) for out, n, s, p, d, k in sizes]

    @property
    def weighs(self) -> bool:
        """Whether the kernel weighs the examples as it gathers them."""
        return self._weighs

    def gradient(self, a: Tensor, b: Tensor) -> Tensor:
        """Return what torch makes."""
        how = self.how
        gradient: Tensor = torch.ops.aten.convolution_backward.default(
            b,
            a,
            how.weight.detach().to(b.dtype),
            None,
            how.stride,
            self.padding,
            how.dilation,
            how.transposed,
            self._output_padding(),
            how.groups,
            (False, True, False),
        )[1]
        return gradient

    def without(self, gram: bool) -> bool:
        """Whether the ghost identity is cheaper."""
        return self.how.groups == 1 and not self._many and ghost_is_cheaper(*self.cost, gram=gram)

    @property
    def _many(self) -> bool:
        """Whether the kernel has so many rows to each class that no other way comes near it."""
        return self.by_kernel and has_many_rows(*self.cost[:4])

    def write(self, out: Tensor, start: int, stop: int) -> None:
        """Write what the kernel makes, batched products of rows, or one ordinary gradient per class."""
        if self.by_kernel and stop - start == self.classes:
            self.multiply(self.layout.segments, out=out, order=self.layout.order)
        elif self.by_rows and stop > start:
            self.write_products(out.flatten(2), start, stop)
        else:
            self._one_by_one(out, start, stop)

    def _one_by_one(self, out: Tensor, start: int, stop: int) -> None:
        for slot, position in zip(out, range(start, stop), strict=True):
            if self.layout.sizes[position]:
                slot.copy_(self.gradient(*self.grouped(position, position + 1)))
            else:
                slot.zero_()

    def multiply(self, segments: kernels.Segments, **how: Any) -> None:
        """Have the kernel gather the patches."""
        options = (self.how.kernel_size, self.how.stride, self.padding, self.how.dilation)
        kernels.conv_products(self.a, self.b, segments, *options, place=self.memory.scratch.place, **how)


def conv_terms(call: Call, b: Tensor, layout: ClassLayout, memory: Memory, wanted: frozenset[str]) -> dict[str, Term]:
    """Weight: a convolution's; bias: the sum of b over the positions."""
    module = call.module
    assert isinstance(module, _ConvNd)
    terms: dict[str, Term] = {}
    if "bias" in wanted:
        if layout.adds_at_once and kernels.available(b):
            terms["bias"] = Dense(kernels.class_channel_sums(b, layout.segments), memory)
        else:
            terms["bias"] = Sums(b.sum(tuple(range(2, b.dim()))), layout, memory)
    if "weight" in wanted:
        a = call.input if call.input.dtype == b.dtype else call.input.to(b.dtype)
        padding = cast(tuple[int, ...], module.padding)
        pads = module._reversed_padding_repeated_twice
        if not module.transposed and (module.padding_mode != "zeros" or pads[::2] != pads[1::2]):
            a = F.pad(a, pads, mode="constant" if module.padding_mode == "zeros" else module.padding_mode)
            padding = (0,) * len(module.kernel_size)
        elif not module.transposed:
            padding = tuple(pads[::-2])
        how = Sliding(module.weight, module.stride, module.dilation, module.groups, module.transposed)
        terms["weight"] = ConvTerm(how, a, b, padding, layout, memory)
    return terms


def _batched(call: Call, examples: int) -> bool:
    shape = call.input.shape
    return len(shape) == len(cast(Any, call.module).kernel_size) + 2 and shape[0] == examples


def _options(call: Call) -> tuple[object, ...]:
    m = cast(_ConvNd, call.module)
    return m.stride, m.padding, m.dilation, m.groups, m.padding_mode, m.output_padding


for _layer in (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d):
    add_rule(_layer, LayerRule(("weight", "bias"), conv_terms, _batched, options=_options))

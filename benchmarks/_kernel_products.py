"""Cases of the kernels for class gradients of weights, and a search for their block sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from _kernel_case import DEVICE, Case, Inputs, members_of, name, normal, replayed
from torch import Tensor, nn
from torch.nn import functional as F

from classgrad.gradients import kernels
from classgrad.gradients._layout import ClassLayout
from classgrad.gradients.layers._conv import ConvTerm
from classgrad.gradients.terms._products import class_products
from classgrad.gradients.terms._terms import Memory, weigh


@dataclass(frozen=True)
class Shape:
    """A convolution of a network for images of 32 pixels."""

    model: str
    channels: int
    outer: int
    side: int
    kernel: int = 3
    stride: int = 1
    padding: int = 1
    always: bool = False
    """Whether it is measured with all layouts."""

    @property
    def out(self) -> int:
        return (self.side + 2 * self.padding - self.kernel) // self.stride + 1

    def __str__(self) -> str:
        step = f"/{self.stride}" if self.stride > 1 else ""
        return f"{self.model} {self.channels}-{self.outer}@{self.side} {self.kernel}x{self.kernel}{step}"


SHAPES = [
    Shape("vgg", 64, 64, 32, always=True),
    Shape("vgg", 256, 256, 8, always=True),
    Shape("vgg", 512, 512, 4, always=True),
    Shape("resnet", 64, 64, 8, always=True),
    Shape("vgg", 3, 64, 32),
    Shape("vgg", 128, 128, 16),
    Shape("vgg", 512, 512, 2),
    Shape("resnet", 3, 64, 32, 7, 2, 3),
    Shape("resnet", 64, 128, 8, 3, 2, 1),
    Shape("resnet", 64, 128, 8, 1, 2, 0),
    Shape("resnet", 512, 512, 1),
    Shape("cnn", 3, 16, 32, 5, 1, 2),
    Shape("cnn", 16, 32, 16, 5, 1, 2),
]


def convolution(layouts: list[list[int]], precision: str) -> Iterator[Case]:
    for place, sizes in enumerate(layouts):
        for shape in SHAPES:
            if place and not shape.always:
                continue
            yield conv_case(shape, sizes, precision)
            if shape.always and len(sizes) > 2:
                yield conv_case(shape, sizes, precision, norms=True)
            if not place and (shape.model == "cnn" or (shape.side in (8, 32) and shape.always)):
                yield conv_case(shape, sizes, precision, format=torch.channels_last)


def conv_case(
    shape: Shape,
    sizes: list[int],
    precision: str,
    *,
    norms: bool = False,
    format: torch.memory_format = torch.contiguous_format,
) -> Case:
    segments, examples = kernels.Segments(sizes, DEVICE), sum(sizes)
    layout = _layout(sizes)
    module = nn.Conv2d(
        shape.channels, shape.outer, shape.kernel, shape.stride, shape.padding, bias=False, device=DEVICE
    ).requires_grad_(False)
    pads = (shape.padding, shape.padding)

    def make() -> Inputs:
        a = normal(examples, shape.channels, shape.side, shape.side, format=format)
        return {"a": a, "b": normal(examples, shape.outer, shape.out, shape.out, format=format)}

    def ours(v: Inputs) -> Tensor:
        settings = (module.kernel_size, module.stride, pads, (1, 1))
        return kernels.conv_products(
            v["a"], v["b"], segments, *settings, precision=precision, norms=norms, taps_first=True
        )

    def now(v: Inputs) -> Tensor:
        term = ConvTerm(module, v["a"], v["b"], pads, layout, Memory(2**40))
        return term.square_norms() if norms else term.dense(0, len(sizes))

    def plain(v: Inputs) -> object:
        settings = (module.stride, pads, (1, 1), False, (0, 0), 1, (False, True, False))
        return torch.ops.aten.convolution_backward(v["b"], v["a"], module.weight, None, *settings)

    def exact(v: Inputs) -> dict[str, Tensor]:
        ends = slice(0, sizes[0]), slice(examples - sizes[-1], examples)
        out = []
        for rows in ends:
            seen = F.unfold(v["a"][rows].double(), shape.kernel, 1, shape.padding, shape.stride)
            gradient = torch.einsum("nop,nkp->ok", v["b"][rows].double().flatten(2), seen)
            out.append(gradient.view(shape.outer * shape.channels, -1).T.flatten())
        both = torch.stack(out)
        return {"out": both.square().sum(1) if norms else both}

    return Case(
        f"conv {shape}{' nhwc' if format is torch.channels_last else ''} {name(sizes)}{' norms' if norms else ''}",
        make,
        ours,
        now,
        plain,
        exact,
        lambda out: {"out": out[[0, -1]]},
        flops=2.0 * examples * shape.out**2 * shape.outer * shape.channels * shape.kernel**2,
    )


def linear(layouts: list[list[int]], precision: str) -> Iterator[Case]:
    for sizes in layouts:
        segments, examples = kernels.Segments(sizes, DEVICE), sum(sizes)
        for positions, inner, outer in ((64, 128, 384), (64, 512, 128), (1, 3072, 512), (1, 512, 10)):

            def make(n=examples, t=positions, d=inner, o=outer) -> Inputs:
                return {"a": normal(n, t, d), "b": normal(n, t, o)}

            def exact(v: Inputs, sizes=sizes) -> dict[str, Tensor]:
                both = [(v[k].double().split(sizes)[i].flatten(0, 1)) for i in (0, -1) for k in ("b", "a")]
                return {"out": torch.stack([both[0].T @ both[1], both[2].T @ both[3]]).flatten(1)}

            yield Case(
                f"linear {positions}x{inner}-{outer} {name(sizes)}",
                make,
                lambda v, s=segments: kernels.linear_products(v["a"], v["b"], s, precision=precision),
                lambda v, sizes=sizes: class_products(v["a"], v["b"], sizes),
                lambda v: v["b"].flatten(0, 1).T @ v["a"].flatten(0, 1),
                exact,
                lambda out: {"out": out[[0, -1]]},
                flops=2.0 * examples * positions * inner * outer,
            )


def combination(layouts: list[list[int]]) -> Iterator[Case]:
    for sizes in layouts:
        classes = len(sizes)
        width = 34_544 if classes > 100 else 11_181_648  # simple_cnn and resnet18, in multiples of 16

        def make(n=classes, p=width) -> Inputs:
            return {"kept": normal(n, p), "w": normal(n)}

        def norms(v: Inputs) -> Tensor:
            return torch.linalg.vector_norm(v["kept"], dim=1).square()

        moved = 4.0 * classes * width
        yield Case(
            f"weighted sum {classes}x{width}",
            make,
            lambda v: kernels.weighted_sum(v["kept"], v["w"]),
            lambda v: weigh(v["w"], v["kept"], False),
            lambda v: v["w"] @ v["kept"],
            lambda v: {"out": torch.stack([v["w"].double() @ p.double() for p in v["kept"].split(2**20, 1)[:1]])[0]},
            lambda out: {"out": out[: 2**20]},
            bytes=moved,
        )
        yield Case(
            f"square norms {classes}x{width}",
            make,
            lambda v: kernels.row_square_norms(v["kept"]),
            norms,
            None,
            lambda v: {"out": sum(p.double().square().sum(1) for p in v["kept"].split(2**20, 1))},
            lambda out: {"out": out},
            bytes=moved,
        )


def sweep(sizes: list[int], precision: str) -> Iterator[str]:
    """Time ways to cut the products of some convolutions; a line each, best first."""
    from classgrad.gradients.kernels import _products as products

    taps = [(64, 64, 32), (64, 64, 64), (128, 64, 32), (64, 128, 32), (128, 128, 32), (128, 256, 32), (32, 64, 64)]
    flat = [(64, 64, 32), (64, 128, 32), (128, 128, 32), (64, 256, 32)]
    segments = kernels.Segments(sizes, DEVICE)
    for shape in SHAPES[:4] + SHAPES[5:6]:
        for format in (torch.contiguous_format, torch.channels_last):
            case = conv_case(shape, sizes, precision, format=format)
            sets = [case.make() for _ in range(3)]
            settings = ((shape.kernel,) * 2, (shape.stride,) * 2, (shape.padding,) * 2, (1, 1))
            tiles = [(*tile, True, False) for tile in taps]
            if format is torch.contiguous_format:
                tiles += [(*tile, False, pad) for tile in flat for pad in (False, True)]
            found: list[tuple[float, str]] = []
            for m, n, k, one, pad in tiles:
                if m > shape.outer or (one and n > shape.channels):
                    continue
                for warps, stages in ((4, 3), (4, 4)) if m * n <= 64 * 128 else ((8, 3), (4, 3)):
                    blocks = products.Blocks(m, n, k, one, warps, stages, pad)
                    label = f"{m}x{n}x{k}{'t' if one else 'f'}{'p' if pad else ''}w{warps}s{stages}"
                    way = partial(_cut, segments, settings, precision, blocks)
                    try:
                        found.append((replayed(way, sets), label))
                    except Exception as error:
                        found.append((float("inf"), f"{label} {type(error).__name__}"))
                        torch.cuda.synchronize()
            best = " ".join(f"{label}:{seconds * 1e6:.0f}" for seconds, label in sorted(found))
            yield f"{case.name} ({case.flops * 1e-9:.1f} GFLOP) {best}"


def _cut(
    segments: kernels.Segments, settings: Sequence[tuple[int, ...]], precision: str, blocks: object, v: Inputs
) -> Tensor:
    return kernels.conv_products(
        v["a"], v["b"], segments, *settings, precision=precision, blocks=blocks, taps_first=True
    )


def _layout(sizes: list[int]) -> ClassLayout:
    return ClassLayout(torch.arange(len(sizes), device=DEVICE), members_of(sizes).argmax(0))

"""What each kernel of classgrad.gradients.kernels costs on a GPU, shape by shape.

A line per case: microseconds of the kernel, of the torch operations it replaces and of the plain backward operation it
competes with (which gives no class gradients), what the kernel achieves in GB/s or TFLOP/s of the least that must be
moved or multiplied, and the largest error relative to the largest value in double precision. Times are those of
replayed CUDA graphs over several sets of inputs, so that they do not all come from the cache.

    PYTHONPATH=src python3 benchmarks/kernels.py [--only groupnorm,conv] [--layouts 2x64,1000x1] [--ieee] [--budget 55]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from classgrad.gradients import kernels

Inputs = dict[str, Tensor]
Way = Callable[[Inputs], object]
DEVICE = "cuda"
_ROTATED = 200 * 2**20
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
    sets = [first, *(case.make() for _ in range(min(7, _ROTATED // max(1, size))))]
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


def _normal(*shape: int, format: torch.memory_format = torch.contiguous_format) -> Tensor:
    return torch.randn(*shape, device=DEVICE).contiguous(memory_format=format)


def group_norm(layouts: list[list[int]]) -> Iterator[Case]:
    shapes = {"vgg": [(64, 32), (128, 16), (256, 8), (512, 4), (512, 2)], "resnet": [(64, 16), (64, 8), (512, 1)]}
    formats = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}
    for examples in sorted({128 if sum(sizes) < 200 else sum(sizes) for sizes in layouts}):
        for model, maps in shapes.items():
            for channels, side in maps:
                for layout, format in formats.items():
                    if layout == "nhwc" and (model, side) not in (("vgg", 32), ("vgg", 8)):
                        continue
                    groups = channels // 4

                    def make(n=examples, c=channels, s=side, g=groups, f=format) -> Inputs:
                        x = _normal(n, c, s, s, format=f) + 0.3
                        mean, rstd = torch.native_group_norm(x.contiguous(), None, None, n, c, s * s, g, 1e-5)[1:]
                        return {
                            "x": x,
                            "dy": _normal(n, c, s, s, format=f),
                            "mean": mean,
                            "rstd": rstd,
                            "w": _normal(c),
                        }

                    def ours(v: Inputs, g=groups) -> object:
                        return kernels.group_norm_backward(v["dy"], v["x"], v["mean"], v["rstd"], v["w"], g)

                    def plain(v: Inputs, g=groups, c=channels, p=side * side) -> object:
                        x, dy = v["x"].contiguous(), v["dy"].contiguous()
                        ask = [True, True, True]
                        return torch.ops.aten.native_group_norm_backward(
                            dy, x, v["mean"], v["rstd"], v["w"], len(x), c, p, g, ask
                        )

                    def now(v: Inputs, plain=plain) -> object:
                        out = plain(v)
                        dy, x = (v[k].reshape(v[k].shape[0] * v[k].shape[1], -1) for k in ("dy", "x"))
                        sums, dots = dy.sum(1).view(len(v["x"]), -1), torch.linalg.vecdot(dy, x).view(len(v["x"]), -1)
                        mean, rstd = (v[k].repeat_interleave(4, 1) for k in ("mean", "rstd"))
                        return out, sums, (dots - mean * sums) * rstd

                    def exact(v: Inputs, g=groups) -> dict[str, Tensor]:
                        x, dy = v["x"].double().requires_grad_(), v["dy"].double()
                        F.group_norm(x, g, v["w"].double()).backward(dy)
                        normal = F.group_norm(x.detach(), g)
                        return {"dx": x.grad, "weight": (normal * dy).sum((2, 3)), "bias": dy.sum((2, 3))}

                    yield Case(
                        f"groupnorm {model} {channels}@{side} {layout} N={examples}",
                        make,
                        ours,
                        now,
                        plain,
                        exact,
                        lambda out: dict(zip(("dx", "weight", "bias"), out, strict=True)),
                        bytes=12.0 * examples * channels * side * side,
                    )


def layer_norm(layouts: list[list[int]]) -> Iterator[Case]:
    for sizes in layouts:
        examples, positions, width = sum(sizes), 64, 128
        segments = kernels.Segments(sizes, DEVICE)

        def make(n=examples, t=positions, d=width) -> Inputs:
            x = _normal(n, t, d)
            mean, rstd = torch.native_layer_norm(x, (d,), None, None, 1e-5)[1:]
            return {"x": x, "dy": _normal(n, t, d), "mean": mean, "rstd": rstd, "w": _normal(d)}

        def ours(v: Inputs, s=segments, d=width) -> object:
            return kernels.layer_norm_backward(v["dy"], v["x"], v["mean"], v["rstd"], v["w"], s, d)

        def plain(v: Inputs, d=width) -> object:
            ask = [True, True, True]
            return torch.ops.aten.native_layer_norm_backward(
                v["dy"], v["x"], (d,), v["mean"], v["rstd"], v["w"], v["w"], ask
            )

        members = _members(sizes)

        def now(v: Inputs, m=members, plain=plain) -> object:
            normal = (v["x"] - v["mean"]).mul_(v["rstd"])
            return plain(v), m @ normal.mul_(v["dy"]).sum(1), m @ v["dy"].sum(1)

        def exact(v: Inputs, m=members, d=width) -> dict[str, Tensor]:
            m = m.double()
            x, dy = v["x"].double().requires_grad_(), v["dy"].double()
            F.layer_norm(x, (d,), v["w"].double()).backward(dy)
            normal = F.layer_norm(x.detach(), (d,))
            return {"dx": x.grad, "weight": m @ (normal * dy).sum(1), "bias": m @ dy.sum(1)}

        yield Case(
            f"layernorm {positions}x{width} {_name(sizes)}",
            make,
            ours,
            now,
            plain,
            exact,
            lambda out: dict(zip(("dx", "weight", "bias"), out, strict=True)),
            bytes=12.0 * examples * positions * width,
        )


def class_sums(layouts: list[list[int]]) -> Iterator[Case]:
    for sizes in layouts:
        segments, members, examples = kernels.Segments(sizes, DEVICE), _members(sizes), sum(sizes)
        for kind, shape in (("rows", (64, 512)), ("channels", (64, 32, 32)), ("channels", (512, 2, 2))):

            def make(n=examples, shape=shape) -> Inputs:
                return {"b": _normal(n, *shape)}

            def ours(v: Inputs, s=segments, rows=kind == "rows") -> object:
                return kernels.class_row_sums(v["b"], s) if rows else kernels.class_channel_sums(v["b"], s)

            def now(v: Inputs, m=members, dims=(1,) if kind == "rows" else (2, 3)) -> Tensor:
                return m.to(v["b"].dtype) @ v["b"].sum(dims)

            yield Case(
                f"classsums {kind} {'x'.join(map(str, shape))} {_name(sizes)}",
                make,
                ours,
                now,
                lambda v, dims=(0, 1) if kind == "rows" else (0, 2, 3): v["b"].sum(dims),
                lambda v, now=now, m=members: {"out": now({"b": v["b"].double()}, m.double())},
                lambda out: {"out": out},
                bytes=4.0 * examples * torch.Size(shape).numel(),
            )


def _members(sizes: list[int]) -> Tensor:
    index = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes)).to(DEVICE)
    return F.one_hot(index, len(sizes)).T.float()


def _name(sizes: list[int]) -> str:
    return f"{len(sizes)}x{sizes[0]}" if min(sizes) == max(sizes) else f"{len(sizes)} of {min(sizes)}-{max(sizes)}"


KERNELS: dict[str, Callable[[list[list[int]]], Iterator[Case]]] = {
    "groupnorm": group_norm,
    "layernorm": layer_norm,
    "classsums": class_sums,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(KERNELS))
    parser.add_argument("--layouts", default="2x64,10x13,100x2,1000x1", help="classes x examples of each")
    parser.add_argument("--ieee", action="store_true", help="products in full single precision, not TF32")
    parser.add_argument("--budget", type=float, default=55.0, help="seconds after which no further case is begun")
    options = parser.parse_args()
    pairs = [tuple(int(v) for v in layout.split("x")) for layout in options.layouts.split(",")]
    layouts = [[size] * classes for classes, size in pairs]
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = not options.ieee
    torch.manual_seed(0)
    begin = time.perf_counter()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {'ieee' if options.ieee else 'tf32'}")
    print(
        f"{'case':<44} {'ours us':>9} {'torch us':>9}{'ratio':>7} {'plain us':>9}{'ratio':>7} {'rate':>15} {'error':>8}"
    )
    for kernel in options.only.split(","):
        for case in KERNELS[kernel](layouts):
            if time.perf_counter() - begin > options.budget:
                print(f"{case.name:<44} left out: over the budget")
                continue
            try:
                print(measure(case), flush=True)
            except Exception as error:
                print(f"{case.name:<44} {type(error).__name__}: {str(error).splitlines()[0]:.120}", flush=True)
    print(f"{time.perf_counter() - begin:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()

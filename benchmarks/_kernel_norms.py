"""Cases of the kernels for normalizations and sums by class."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from _kernel_case import DEVICE, Case, Inputs, members_of, name, normal
from torch import Tensor
from torch.nn import functional as F

from classgrad.gradients import kernels


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
                        x = normal(n, c, s, s, format=f) + 0.3
                        mean, rstd = torch.native_group_norm(x.contiguous(), None, None, n, c, s * s, g, 1e-5)[1:]
                        return {
                            "x": x,
                            "dy": normal(n, c, s, s, format=f),
                            "mean": mean,
                            "rstd": rstd,
                            "w": normal(c),
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
            x = normal(n, t, d)
            mean, rstd = torch.native_layer_norm(x, (d,), None, None, 1e-5)[1:]
            return {"x": x, "dy": normal(n, t, d), "mean": mean, "rstd": rstd, "w": normal(d)}

        def ours(v: Inputs, s=segments, d=width) -> object:
            return kernels.layer_norm_backward(v["dy"], v["x"], v["mean"], v["rstd"], v["w"], s, d)

        def plain(v: Inputs, d=width) -> object:
            ask = [True, True, True]
            return torch.ops.aten.native_layer_norm_backward(
                v["dy"], v["x"], (d,), v["mean"], v["rstd"], v["w"], v["w"], ask
            )

        members = members_of(sizes)

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
            f"layernorm {positions}x{width} {name(sizes)}",
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
        segments, members, examples = kernels.Segments(sizes, DEVICE), members_of(sizes), sum(sizes)
        for kind, shape in (("rows", (64, 512)), ("channels", (64, 32, 32)), ("channels", (512, 2, 2))):

            def make(n=examples, shape=shape) -> Inputs:
                return {"b": normal(n, *shape)}

            def ours(v: Inputs, s=segments, rows=kind == "rows") -> object:
                return kernels.class_row_sums(v["b"], s) if rows else kernels.class_channel_sums(v["b"], s)

            def now(v: Inputs, m=members, dims=(1,) if kind == "rows" else (2, 3)) -> Tensor:
                return m.to(v["b"].dtype) @ v["b"].sum(dims)

            yield Case(
                f"classsums {kind} {'x'.join(map(str, shape))} {name(sizes)}",
                make,
                ours,
                now,
                lambda v, dims=(0, 1) if kind == "rows" else (0, 2, 3): v["b"].sum(dims),
                lambda v, now=now, m=members: {"out": now({"b": v["b"].double()}, m.double())},
                lambda out: {"out": out},
                bytes=4.0 * examples * torch.Size(shape).numel(),
            )

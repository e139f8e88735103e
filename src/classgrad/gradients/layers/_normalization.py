"""The affine parameters of normalization layers that treat examples independently."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from classgrad.gradients import kernels
from classgrad.gradients._layout import ClassLayout
from classgrad.gradients.layers._registry import LayerRule, Through, add_rule, leading
from classgrad.gradients.layers._taps import Call
from classgrad.gradients.terms._terms import Dense, Memory, Sums, Term, promote

_PRODUCTS = 2**18
"""Products of a CPU at a time: it takes longer to be handed out memory for many than to make them."""

PerExampleSums = Callable[[Call, Tensor, frozenset[str]], dict[str, Tensor]]


def _rule(
    sums: PerExampleSums,
    parameters: tuple[str, ...] = ("weight", "bias"),
    applies: Callable[[Call, int], bool] = leading,
    through: Through | None = None,
    options: Callable[[Call], Hashable | None] | None = None,
) -> LayerRule:
    """Make a rule from per-example gradients that are as small as the parameters."""

    def terms(call: Call, b: Tensor, layout: ClassLayout, memory: Memory, wanted: frozenset[str]) -> dict[str, Term]:
        per_example = sums(call, promote(b), wanted)
        return {name: Sums(per_example[name], layout, memory) for name in wanted}

    return LayerRule(parameters, terms, applies, through, options=options)


def _layer_norm(call: Call, b: Tensor, wanted: frozenset[str]) -> dict[str, Tensor]:
    module = cast(nn.LayerNorm, call.module)
    out = {}
    if "weight" in wanted:
        x = call.input.to(b.dtype)
        if call.saved is None:
            normal = F.layer_norm(x, module.normalized_shape, eps=module.eps)
        else:
            mean, rstd = call.saved
            normal = (x - mean).mul_(rstd)
        out["weight"] = _leading_sum(normal.mul_(b), len(module.normalized_shape))
    if "bias" in wanted:
        out["bias"] = _leading_sum(b, len(module.normalized_shape))
    return out


def _layer_norm_through(
    call: Call, b: Tensor, layout: ClassLayout, memory: Memory, out: Tensor | None = None, *, with_input: bool = True
) -> tuple[Tensor | None, dict[str, Term]]:
    module = cast(nn.LayerNorm, call.module)
    assert call.saved is not None
    width = math.prod(module.normalized_shape)
    grouped = layout.adds_at_once
    segments = layout.segments if grouped else layout.singles
    given = (b, call.input, *call.saved, call.weight, segments, width)
    x, *sums = kernels.layer_norm_backward(*given, with_input=with_input, out=out)
    if len(module.normalized_shape) > 1:
        sums = [values.view(-1, *module.normalized_shape) for values in sums]
    weight, bias = ((Dense(v, memory) if grouped else Sums(v, layout, memory)) for v in sums)
    return x, {"weight": weight, "bias": bias}


def _suits_kernel(call: Call, b: Tensor) -> bool:
    if call.saved is None or not kernels.available(b) or call.input.dtype != b.dtype:
        return False
    return math.prod(cast(nn.LayerNorm, call.module).normalized_shape) <= kernels.WIDEST


def _layer_norm_terms(
    call: Call, b: Tensor, layout: ClassLayout, memory: Memory, wanted: frozenset[str]
) -> dict[str, Term]:
    """On a CPU let torch's own kernel make the sums, class by class: it goes over input and gradient once."""
    if _suits_kernel(call, b):
        return _layer_norm_through(call, b, layout, memory, with_input=False)[1]
    if call.saved is None or b.device.type != "cpu" or call.input.dtype != b.dtype:
        sums = _layer_norm(call, promote(b), wanted)
        return {name: Sums(sums[name], layout, memory) for name in wanted}
    module = cast(nn.LayerNorm, call.module)
    values: tuple[Tensor, ...] = (b, call.input, *call.saved)
    if layout.order is not None:
        values = tuple(memory.scratch.gathered(use, v, layout.order) for use, v in zip("baxy", values, strict=True))
    out = {name: b.new_zeros(len(layout), *module.normalized_shape) for name in wanted}
    mask = [False, "weight" in wanted, "bias" in wanted]
    for position, (i, j) in enumerate(layout.bounds):
        if j > i:
            rows, x, mean, rstd = (v[i:j] for v in values)
            found = torch.ops.aten.native_layer_norm_backward(
                rows, x, module.normalized_shape, mean, rstd, module.weight, module.bias, mask
            )
            for name in wanted:
                out[name][position] = found[1 if name == "weight" else 2]
    return {name: Dense(value, memory) for name, value in out.items()}


def _rms_norm_terms(
    call: Call, b: Tensor, layout: ClassLayout, memory: Memory, wanted: frozenset[str]
) -> dict[str, Term]:
    module = cast(nn.RMSNorm, call.module)
    width = math.prod(module.normalized_shape)
    if not kernels.available(b) or call.input.dtype != b.dtype or width > kernels.WIDEST:
        return {"weight": Sums(_rms_norm(call, promote(b), wanted)["weight"], layout, memory)}
    grouped = layout.adds_at_once
    eps = torch.finfo(b.dtype).eps if module.eps is None else module.eps
    segments = layout.segments if grouped else layout.singles
    sums = kernels.rms_norm_backward(b, call.input, None, module.weight, segments, width, eps, with_input=False)[1]
    values = sums.view(-1, *module.normalized_shape)
    return {"weight": Dense(values, memory) if grouped else Sums(values, layout, memory)}


def _rms_norm(call: Call, b: Tensor, wanted: frozenset[str]) -> dict[str, Tensor]:
    module = cast(nn.RMSNorm, call.module)
    normal = F.rms_norm(call.input.to(b.dtype), module.normalized_shape, eps=module.eps)
    return {"weight": _leading_sum(normal * b, len(module.normalized_shape))}


def _leading_sum(values: Tensor, kept: int) -> Tensor:
    """Sum over all dimensions but the examples and the last ``kept``."""
    between = tuple(range(1, values.dim() - kept))
    return values.sum(between) if between else values


def _group_norm(call: Call, b: Tensor, wanted: frozenset[str]) -> dict[str, Tensor]:
    module = cast(nn.GroupNorm, call.module)
    if call.saved is not None and kernels.available(b) and call.input.dtype == b.dtype:
        found = kernels.group_norm_sums(b, call.input, *call.saved, module.num_groups)
        return dict(zip(("weight", "bias"), found, strict=True))
    x = call.input.to(b.dtype)
    groups = (len(x), module.num_groups, -1)
    if call.saved is None:
        variance, mean = torch.var_mean(x.reshape(groups), 2, correction=0, keepdim=True)
        rstd = (variance + module.eps).rsqrt()
    else:
        mean, rstd = (v.view(groups).to(b.dtype) for v in call.saved)
    sums = b.reshape(*b.shape[:2], -1).sum(2)
    out = {"bias": sums}
    if "weight" in wanted:
        # Σ b (x − mean) rstd per channel needs no normalized copy of x, only two sums of each channel
        dots = _channel_dot(b, x).view(groups)
        out["weight"] = dots.sub_(mean * sums.view(groups)).mul_(rstd).view(sums.shape)
    return out


def _group_norm_through(
    call: Call, b: Tensor, layout: ClassLayout, memory: Memory, out: Tensor | None = None
) -> tuple[Tensor | None, dict[str, Term]]:
    module = cast(nn.GroupNorm, call.module)
    assert call.saved is not None
    x, *sums = kernels.group_norm_backward(b, call.input, *call.saved, call.weight, module.num_groups, out=out)
    return x, {name: Sums(values, layout, memory) for name, values in zip(("weight", "bias"), sums, strict=True)}


def _channel_dot(b: Tensor, x: Tensor) -> Tensor:
    """Return Σ b x over the positions of each example's channel: (N, C, ...) to (N, C)."""
    left, right = (v.reshape(v.shape[0] * v.shape[1], -1) for v in (b, x))
    channels = len(left) if b.is_cuda else max(1, _PRODUCTS // max(1, left.shape[1]))
    parts = zip(torch.split(left, channels), torch.split(right, channels), strict=True)
    dots = [torch.linalg.vecdot(*part) for part in parts]
    return (dots[0] if len(dots) == 1 else torch.cat(dots)).view(b.shape[:2])


def _channel_sums(call: Call, b: Tensor, wanted: frozenset[str], normal: Callable[[], Tensor]) -> dict[str, Tensor]:
    out = {}
    if "weight" in wanted:
        out["weight"] = _channel_dot(b, normal())
    if "bias" in wanted:
        out["bias"] = b.reshape(*b.shape[:2], -1).sum(2)
    return out


def _instance_norm(call: Call, b: Tensor, wanted: frozenset[str]) -> dict[str, Tensor]:
    module = cast(Any, call.module)
    own = call.training or not module.track_running_stats

    def normal() -> Tensor:
        x = call.input.to(b.dtype)
        return F.instance_norm(x, eps=module.eps) if own else _by_running_statistics(module, x)

    return _channel_sums(call, b, wanted, normal)


def _batch_norm(call: Call, b: Tensor, wanted: frozenset[str]) -> dict[str, Tensor]:
    """BatchNorm in evaluation mode, where it is a fixed affine map; in training the whole step falls back."""
    return _channel_sums(call, b, wanted, lambda: _by_running_statistics(call.module, call.input.to(b.dtype)))


def _by_running_statistics(module: Any, x: Tensor) -> Tensor:
    mean, variance = module.running_mean.to(x.dtype), module.running_var.to(x.dtype)
    return F.batch_norm(x, mean, variance, training=False, eps=module.eps)


def _prelu(call: Call, b: Tensor, wanted: frozenset[str]) -> dict[str, Tensor]:
    module = cast(nn.PReLU, call.module)
    x = call.input.to(b.dtype)
    slope = torch.where(x < 0, x * b, x.new_zeros(()))
    if module.num_parameters == 1:
        return {"weight": slope.flatten(1).sum(1, keepdim=True)}
    return {"weight": slope.reshape(*slope.shape[:2], -1).sum(2)}


def _over_features(call: Call, examples: int) -> bool:
    """Layer and RMS normalization may be told to normalize over the examples too."""
    return leading(call, examples) and call.input.dim() > len(cast(Any, call.module).normalized_shape)


def _channels_batched(call: Call, examples: int) -> bool:
    """Instance normalization also takes a single example; batch normalization knows none while it trains."""
    if isinstance(call.module, _BatchNorm):
        return leading(call, examples) and not call.training
    return leading(call, examples) and call.input.dim() == {"1": 3, "2": 4, "3": 5}[type(call.module).__name__[-2]]


def _features(call: Call) -> Hashable:
    module: Any = call.module
    return module.normalized_shape, module.eps


def _groups(call: Call) -> Hashable:
    module: Any = call.module
    return module.num_groups, module.eps


_LAYER_NORM = LayerRule(("weight", "bias"), _layer_norm_terms, _over_features, _layer_norm_through, options=_features)
add_rule(nn.LayerNorm, _LAYER_NORM)
add_rule(nn.RMSNorm, LayerRule(("weight",), _rms_norm_terms, _over_features, options=_features))
add_rule(nn.GroupNorm, _rule(_group_norm, through=_group_norm_through, options=_groups))
add_rule(nn.PReLU, _rule(_prelu, ("weight",)))
for _layer, _sums in (
    (nn.InstanceNorm1d, _instance_norm),
    (nn.InstanceNorm2d, _instance_norm),
    (nn.InstanceNorm3d, _instance_norm),
    (nn.BatchNorm1d, _batch_norm),
    (nn.BatchNorm2d, _batch_norm),
    (nn.BatchNorm3d, _batch_norm),
):
    add_rule(_layer, _rule(_sums, applies=_channels_batched))

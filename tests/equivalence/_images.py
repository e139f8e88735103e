"""Convolutional networks in one, two and three dimensions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from ._case import OUTPUTS, Layout, Network, generators, randomize

_SIZES = {1: 8, 2: 6, 3: 5}
_CONV = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
_TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
_INSTANCE = {1: nn.InstanceNorm1d, 2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d}
_BATCH = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
_CHANNELS = st.sampled_from((2, 4))


class Residual(nn.Module):
    """The same layer twice, with the input added each time."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.inner(x)
        return x + self.inner(x).tanh()


class ChannelsLast(nn.Module):
    """A layer over the last dimension, applied to the channels: its input is no longer contiguous."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.movedim(1, -1)).movedim(-1, 1)


def _each(draw: st.DrawFn, dims: int, values: st.SearchStrategy[int]) -> tuple[int, ...]:
    return tuple(draw(values) for _ in range(dims))


def _groups(draw: st.DrawFn, channels: int, out: int) -> int:
    return draw(st.sampled_from([g for g in (1, 2, 4) if channels % g == 0 and out % g == 0]))


def _convolution(draw: st.DrawFn, dims: int, channels: int, size: tuple[int, ...]) -> tuple[nn.Module, int]:
    out = draw(_CHANNELS)
    kernel = tuple(draw(st.integers(1, min(3, s))) for s in size)
    dilation = tuple(draw(st.integers(1, 2 if 2 * (k - 1) < s else 1)) for k, s in zip(kernel, size, strict=True))
    least = min(size)
    padding = draw(
        st.sampled_from(["same", "valid", 0, 1])
        | st.tuples(*[st.integers(0, min(2, least - 1))] * dims)  # reflection needs less than the size
    )
    stride = (1,) * dims if padding == "same" else _each(draw, dims, st.integers(1, 2))
    mode = draw(st.sampled_from(["zeros", "reflect", "replicate", "circular"]))
    if mode != "zeros" and least < 3:
        mode = "zeros"
    layer = _CONV[dims](
        channels,
        out,
        kernel,
        stride,
        padding,
        dilation,
        _groups(draw, channels, out),
        bias=draw(st.booleans()),
        padding_mode=mode,
    )
    return layer, out


def _transposed(draw: st.DrawFn, dims: int, channels: int) -> tuple[nn.Module, int]:
    out = draw(_CHANNELS)
    kernel = _each(draw, dims, st.integers(1, 3))
    stride = _each(draw, dims, st.integers(1, 2))
    dilation = _each(draw, dims, st.integers(1, 2))
    padding = tuple(draw(st.integers(0, (k - 1) * d // 2)) for k, d in zip(kernel, dilation, strict=True))
    extra = tuple(draw(st.integers(0, max(s, d) - 1)) for s, d in zip(stride, dilation, strict=True))
    layer = _TRANSPOSED[dims](
        channels,
        out,
        kernel,
        stride,
        padding,
        extra,
        _groups(draw, channels, out),
        bias=draw(st.booleans()),
        dilation=dilation,
    )
    return layer, out


def _normalization(draw: st.DrawFn, dims: int, channels: int, positions: int) -> nn.Module:
    tracked = draw(st.booleans())
    instance = _INSTANCE[dims](channels, affine=True, track_running_stats=tracked)
    instance.train(not tracked)
    choices: list[nn.Module] = [
        nn.Identity(),
        nn.GroupNorm(draw(st.sampled_from((1, 2))), channels),
        instance,
        _BATCH[dims](channels).eval(),
        ChannelsLast(nn.LayerNorm(channels, bias=draw(st.booleans()))),
        ChannelsLast(nn.RMSNorm(channels)),
    ]
    if positions == 1:  # a single position has no deviation to divide by
        choices = [choices[0], choices[3]]
    return draw(st.sampled_from(choices))


def activations(channels: int) -> st.SearchStrategy[nn.Module]:
    """Activations, some in place, some with a parameter."""
    makers: list[Callable[[], nn.Module]] = [
        nn.ReLU,
        lambda: nn.ReLU(inplace=True),
        nn.GELU,
        nn.Tanh,
        lambda: nn.SiLU(inplace=True),
        nn.PReLU,
        lambda: nn.PReLU(channels),
    ]
    return st.sampled_from(makers).map(lambda make: make())


@st.composite
def images(draw: st.DrawFn, layout: Layout) -> Network:
    """One to three convolutions with all their options, normalized, residual, and a linear layer on the means."""
    dims = draw(st.sampled_from((1, 2, 3)))
    channels = draw(_CHANNELS)
    generator = draw(generators)
    x = torch.randn(layout.examples, channels, *[_SIZES[dims]] * dims, generator=generator)
    layers: list[nn.Module] = []
    shape = x.shape[2:]
    for _ in range(draw(st.integers(1, 3))):
        if draw(st.integers(0, 3)) and min(shape) > 1:
            layer, channels = _convolution(draw, dims, channels, shape)
        else:
            layer, channels = _transposed(draw, dims, channels)
        layers.append(layer)
        with torch.no_grad():
            shape = nn.Sequential(*layers)(x[:1]).shape[2:]
        layers.append(_normalization(draw, dims, channels, shape.numel()))
        layers.append(draw(activations(channels)))
        if draw(st.booleans()):
            layers.append(Residual(_CONV[dims](channels, channels, 3, padding=1)))
        if max(shape) > 12:
            break
    head = [nn.Flatten(2), ChannelsLast(nn.Linear(channels, OUTPUTS))]
    model = nn.Sequential(*layers, *head)
    last = dims == 2 and draw(st.booleans())
    if last:
        model = model.to(memory_format=torch.channels_last)
    kinds = {type(layer) for layer in layers}
    return Network(
        randomize(model, generator),
        _laid_out(draw, x),
        # group normalization's backward does not know channels_last under vmap
        vectorized=not (nn.GroupNorm in kinds and (last or ChannelsLast in kinds)),
        whole=Residual in kinds,
    )


def _laid_out(draw: st.DrawFn, x: Tensor) -> Tensor:
    """The same values in the default, the channels-last or no particular order of memory."""
    form = draw(st.sampled_from(("contiguous", "channels_last", "strided")))
    if form == "channels_last" and x.dim() > 3:
        return x.to(memory_format=torch.channels_last if x.dim() == 4 else torch.channels_last_3d)
    if form == "strided":
        return torch.stack([x, x], -1)[..., 0]
    return x

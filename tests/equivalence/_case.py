"""A network with a batch, and how its examples fall into classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

OUTPUTS = 3
"""Outputs of every generated network."""


@dataclass
class Layout:
    """The labels of a batch; ``targets`` are what the losses compare the outputs with."""

    y: Tensor
    declared: list[int] | None
    targets: Tensor

    @property
    def examples(self) -> int:
        return len(self.y)


@dataclass
class Network:
    """A model with its inputs.

    ``covered``: every parameter is one of a layer with a rule, or comes to the examples by an operation that is known,
    so that one backward pass has to do, and nothing need be held for each class. ``vectorized``: torch can run its
    backward under vmap, which TorchJD needs. ``whole``: TorchJD has to be shown the model as one piece, because modules
    share parameters or read those of others.
    """

    model: nn.Module
    x: Any
    covered: bool = True
    vectorized: bool = True
    whole: bool = False


@dataclass
class Case:
    network: Network
    layout: Layout
    dtype: torch.dtype = torch.float64

    @property
    def model(self) -> nn.Module:
        return self.network.model

    def loss(self, x: Any, targets: Tensor) -> Tensor:
        """One loss per example, whatever dimensions follow the outputs'."""
        out = self.model(*x) if isinstance(x, tuple) else self.model(x)
        targets = targets.reshape(-1, *[1] * (out.dim() - 2)).expand(len(out), *out.shape[2:])
        return F.cross_entropy(out, targets, reduction="none").reshape(len(out), -1).mean(1)

    def losses(self) -> Tensor:
        return self.loss(self.network.x, self.layout.targets)


def randomize(model: nn.Module, generator: torch.Generator) -> nn.Module:
    """Give every parameter and statistic a value of its own, so that no symmetry hides a mistake."""
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * 0.4 + 0.3 * (p.dim() == 1))
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer.copy_(torch.randn(buffer.shape, generator=generator))
            if name.endswith("running_var"):
                buffer.copy_(torch.rand(buffer.shape, generator=generator) + 0.5)
    return model


generators = st.integers(0, 2**31 - 1).map(lambda seed: torch.Generator().manual_seed(seed))


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """One class, single examples, unequal sizes, gaps, negative labels, any order, declared classes that are absent."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    labels = draw(st.lists(st.integers(-3, 12), min_size=len(sizes), max_size=len(sizes), unique=True))
    y = torch.tensor([label for label, size in zip(labels, sizes, strict=True) for _ in range(size)])
    if draw(st.booleans()):
        y = y[torch.randperm(len(y), generator=draw(generators))]
    absent = draw(st.none() | st.lists(st.integers(13, 20), max_size=2, unique=True))
    declared = None if absent is None else labels + absent
    return Layout(y, declared, y.remainder(OUTPUTS))

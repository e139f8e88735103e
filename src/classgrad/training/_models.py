"""The model of a run."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from classgrad._errors import InputError
from classgrad.data import Preprocessing
from classgrad.models import build
from classgrad.training._numerics import dtype_of
from classgrad.training._spec import RunSpec
from classgrad.training._streams import stream


def make_model(spec: RunSpec, preprocessing: Preprocessing) -> nn.Module:
    """Build the network for the data at hand, as it is at step 0; the protocol is also the network's variant."""
    generator = torch.Generator().manual_seed(stream(spec.seed, "model"))
    for name in ("generator", "num_classes", "in_features", "in_channels"):
        if name in spec.model_options:
            raise InputError(f"Parameter `{name}` of a model follows from the run. Found one in its options.")
    options = {"variant": spec.protocol, "generator": generator, **spec.model_options}
    return build(spec.model, len(preprocessing.classes), preprocessing.shape, **options).to(dtype_of(spec.precision))


def with_channels_last(model: nn.Module, shape: Sequence[int]) -> nn.Module:
    """Lay the weights of convolutions out with their channels side by side; ``shape`` is that of an example."""
    if len(shape) != 3:
        raise InputError(f"Parameter `channels_last` is for images. Found examples of shape {tuple(shape)}.")
    if not any(p.dim() == 4 for p in model.parameters()):
        raise InputError("Parameter `channels_last` is for networks with convolutions. Found one without.")
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]

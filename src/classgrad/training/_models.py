"""The model of a run."""

from __future__ import annotations

import torch
from torch import nn

from classgrad.data import Preprocessing
from classgrad.models import build
from classgrad.training._numerics import dtype_of
from classgrad.training._spec import RunSpec
from classgrad.training._streams import stream


def make_model(spec: RunSpec, preprocessing: Preprocessing) -> nn.Module:
    """Build the network for the data at hand, as it is at step 0; the protocol is also the network's variant."""
    generator = torch.Generator().manual_seed(stream(spec.seed, "model"))
    options = {"variant": spec.protocol, "generator": generator, **spec.model_options}
    return build(spec.model, len(preprocessing.classes), preprocessing.shape, **options).to(dtype_of(spec.precision))

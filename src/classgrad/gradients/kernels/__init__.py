"""Kernels for CUDA devices, written in Triton, that replace several passes over memory by one.

They compute what the rules in ``layers/`` compute with torch, deterministically: no atomic additions, sums in a fixed
order, and block sizes from the shapes alone. Triton comes with torch's builds for CUDA and is imported when a kernel is
first used. ``CLASSGRAD_KERNELS=0`` in the environment switches them off.

Examples are grouped by class; `Segments` says how many belong to each.
"""

from __future__ import annotations

import importlib
import os
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from classgrad.gradients.kernels._class_sums import class_channel_sums, class_row_sums
    from classgrad.gradients.kernels._combination import row_square_norms, weigh_examples, weighted_sum
    from classgrad.gradients.kernels._ghost import ghost_norms
    from classgrad.gradients.kernels._group_norm import group_norm_backward, group_norm_sums
    from classgrad.gradients.kernels._layer_norm import layer_norm_backward, rms_norm_backward
    from classgrad.gradients.kernels._layer_products import conv_products, linear_products
    from classgrad.gradients.kernels._segments import Segments, one_segment

Weighed = tuple[Tensor, Tensor]
"""Weights without gaps in memory, and for each example the position of its own among them (int64)."""

_HOMES = {
    "Segments": "_segments",
    "class_channel_sums": "_class_sums",
    "class_row_sums": "_class_sums",
    "conv_products": "_layer_products",
    "ghost_norms": "_ghost",
    "group_norm_backward": "_group_norm",
    "group_norm_sums": "_group_norm",
    "layer_norm_backward": "_layer_norm",
    "linear_products": "_layer_products",
    "one_segment": "_segments",
    "rms_norm_backward": "_layer_norm",
    "row_square_norms": "_combination",
    "weigh_examples": "_combination",
    "weighted_sum": "_combination",
}

__all__ = [
    "WIDEST",
    "Segments",
    "Weighed",
    "available",
    "class_channel_sums",
    "class_row_sums",
    "conv_products",
    "ghost_norms",
    "group_norm_backward",
    "group_norm_sums",
    "layer_norm_backward",
    "lies_by_examples",
    "linear_products",
    "one_segment",
    "rms_norm_backward",
    "row_square_norms",
    "weigh_examples",
    "weighted_sum",
]


WIDEST = 8192
"""The most features of a row that layer normalization's kernel takes, which a program holds as a whole."""


def available(tensor: Tensor) -> bool:
    """Whether the kernels can take this tensor and are not switched off."""
    return tensor.is_cuda and tensor.dtype == torch.float32 and _usable(tensor.get_device())


def lies_by_examples(values: Tensor) -> bool:
    """Whether the elements of each example lie together without gaps: contiguous or channels-last."""
    return values.is_contiguous() or (values.dim() == 4 and values.is_contiguous(memory_format=torch.channels_last))


@cache
def _usable(device: int) -> bool:
    if os.environ.get("CLASSGRAD_KERNELS", "1") == "0" or torch.version.hip is not None:
        return False
    return find_spec("triton") is not None and torch.cuda.get_device_capability(device) >= (8, 0)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    return found  # and not asked for again

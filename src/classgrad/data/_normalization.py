"""Mean and standard deviation of a training split, and their use."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

_CHUNK = 4096


def moments(x: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and population standard deviation: of each channel, on the scale 0..1, or of each feature.

    Images are counted in integers, so the result is the same on every machine. What never varies gets a standard
    deviation of 1: it then becomes 0 and not infinite.

    >>> moments(torch.tensor([[[[0]], [[7]]], [[[255]], [[7]]]], dtype=torch.uint8))
    ((0.5, 0.027450980392156862), (0.5, 1.0))
    """
    mean, variance = _image_moments(x) if x.dtype == torch.uint8 else _feature_moments(x)
    return tuple(mean), tuple(math.sqrt(v) if v > 0 else 1.0 for v in variance)


def _image_moments(x: Tensor) -> tuple[list[float], list[float]]:
    histograms = np.zeros((x.shape[1], 256), dtype=np.int64)
    for chunk in torch.split(x, _CHUNK):
        for channel, histogram in enumerate(histograms):
            histogram += np.bincount(chunk[:, channel].reshape(-1).numpy(), minlength=256)
    levels = np.arange(256)
    n = x.numel() // x.shape[1]
    sums, squares = (histograms @ levels).tolist(), (histograms @ levels**2).tolist()
    mean = [s / (255 * n) for s in sums]
    variance = [(n * q - s * s) / (255 * n) ** 2 for s, q in zip(sums, squares, strict=True)]
    return mean, variance


def _feature_moments(x: Tensor) -> tuple[list[float], list[float]]:
    values = x.to(torch.float64)
    mean = values.mean(dim=0)
    varies = (x != x[:1]).any(dim=0)  # rounding of the mean must not make a constant vary
    return mean.tolist(), ((values - mean).square().mean(dim=0) * varies).tolist()


def scale_and_shift(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Normalize ``x``, which is already of the floating type of ``mean`` and ``std``, in place.

    ``mean`` and ``std`` are of shape (C, 1, 1) and in units of 0..255 for images, of shape (D,) for features.
    """
    return x.sub_(mean).div_(std)


def constants(
    mean: tuple[float, ...], std: tuple[float, ...], *, images: bool, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """``mean`` and ``std`` as tensors that :func:`scale_and_shift` takes."""
    pair = torch.tensor([mean, std], dtype=torch.float64)
    if images:
        pair = (pair * 255)[:, :, None, None]
    pair = pair.to(device=device, dtype=dtype)
    return pair[0], pair[1]

"""Synthetic classes: Gaussian clouds whose overlap, noise, dimension and imbalance are known."""

from __future__ import annotations

import json
from collections.abc import Sequence
from statistics import NormalDist

import torch
from torch import Tensor

from classgrad._errors import InputError
from classgrad.data._checks import number, whole
from classgrad.data._dataset import Dataset, Split
from classgrad.data._normalization import moments
from classgrad.data._preprocessing import Preprocessing


def gaussian_classes(
    counts: Sequence[int],
    *,
    dimension: int = 20,
    overlap: float = 0.05,
    noise: float | Sequence[float] = 1.0,
    test_per_class: int = 500,
    seed: int = 0,
    name: str = "gaussian",
) -> Dataset:
    """Classes that are Gaussian clouds around means at equal distances from one another.

    Args:
        counts: training examples of each class.
        dimension: number of features, at least the number of classes.
        overlap: what share of a class lies nearer to the mean of another given class than to its own when its noise
            is 1, below 0.5: with two equal classes this is the error of the best classifier there is.
        noise: standard deviation of every class, or one for each.
        test_per_class: examples of each class in the test split, and as many in the validation split.
        seed: of the generator that draws the examples.
        name: of the dataset.

    >>> data = gaussian_classes([300, 5], overlap=0.01)
    >>> data.counts["train"], data.rho, data.train.x.shape
    ((300, 5), 60.0, torch.Size([305, 20]))
    """
    sizes = [whole("counts", n, least=1) for n in counts]
    classes = len(sizes)
    if classes < 2:
        raise InputError(f"counts must name at least 2 classes, found {classes}")
    whole("dimension", dimension, least=classes)
    spreads = _spreads(noise, classes)
    distance = -2 * NormalDist().inv_cdf(number("overlap", overlap, above=0, below=0.5))
    held_out = whole("test_per_class", test_per_class, least=1)
    generator = torch.Generator().manual_seed(whole("seed", seed))

    means = torch.eye(classes, dimension) * (distance / 2**0.5)
    parts, first = [], 0
    for split_sizes in (sizes, [held_out] * classes, [held_out] * classes):
        y = torch.repeat_interleave(torch.arange(classes), torch.tensor(split_sizes))
        parts.append(Split(_draw(means, spreads, y, generator), y, torch.arange(first, first + len(y))))
        first += len(y)
    train, validation, test = parts
    mean, std = moments(train.x)
    preprocessing = Preprocessing(tuple(f"class {i}" for i in range(classes)), (dimension,), mean, std)
    source = json.dumps(["gaussian", sizes, dimension, float(overlap), spreads.tolist(), held_out, seed])
    return Dataset(name, None, train, validation, test, preprocessing, source)


def _spreads(noise: float | Sequence[float], classes: int) -> Tensor:
    each = list(noise) if isinstance(noise, Sequence) else [noise] * classes
    if len(each) != classes:
        raise InputError(f"noise must be one number or one for each of the {classes} classes, found {len(each)}")
    return torch.tensor([number("noise", value, above=0) for value in each])


def _draw(means: Tensor, spreads: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
    return means[y] + spreads[y, None] * torch.randn(len(y), means.shape[1], generator=generator)

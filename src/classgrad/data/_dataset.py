"""A dataset: three splits, their classes, and what identifies them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from classgrad.data._preprocessing import Preprocessing


@dataclass(frozen=True, eq=False)
class Split:
    """Examples of one split, in the order of their source.

    ``x`` holds uint8 images (N, channels, height, width) or float32 features (N, features), ``y`` the labels (int64)
    and ``indices`` the positions of the examples in their source. CIFAR's test images follow its training images:
    position 50000 is the first test image.
    """

    x: Tensor
    y: Tensor
    indices: Tensor

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training, validation and test split with the names of the classes; label 0 is the majority class.

    ``protocol`` is ``"paper"`` or ``"authors"`` for the paper's datasets and None for others. ``source`` is a checksum
    of what the splits were taken from, whatever file it came in.
    """

    name: str
    protocol: str | None
    train: Split
    validation: Split
    test: Split
    preprocessing: Preprocessing
    source: str

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes in the order of their labels."""
        return self.preprocessing.classes

    @property
    def mean(self) -> tuple[float, ...]:
        """Mean of each channel (on the scale 0..1) or feature, for normalization."""
        return self.preprocessing.mean

    @property
    def std(self) -> tuple[float, ...]:
        """Standard deviation that goes with :attr:`mean`."""
        return self.preprocessing.std

    @property
    def splits(self) -> dict[str, Split]:
        """The splits that hold examples, by name; some recipes have no validation split."""
        return {name: split for name, split in self._all_splits() if len(split)}

    @property
    def counts(self) -> dict[str, tuple[int, ...]]:
        """Number of examples of each class, for every split."""
        return {
            name: tuple(torch.bincount(split.y, minlength=len(self.classes)).tolist())
            for name, split in self._all_splits()
        }

    @property
    def rho(self) -> float:
        """Imbalance ratio ρ, the examples of the largest training class over those of the smallest."""
        train = self.counts["train"]
        return max(train) / min(train)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the source, the class names, and the index and label lists of every split."""
        digest = hashlib.sha256(json.dumps([self.protocol, self.classes, self.source]).encode())
        for name, split in self._all_splits():
            digest.update(f"{name} {len(split)}".encode())
            for values in (split.indices, split.y):
                digest.update(values.numpy().astype("<i8").tobytes())
        return digest.hexdigest()

    def _all_splits(self) -> Iterator[tuple[str, Split]]:
        yield from (("train", self.train), ("validation", self.validation), ("test", self.test))

"""Small tensors side by side in memory, which are copied in one operation."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

Values = Mapping[str, Tensor]
"""Tensors of one dimension, by their names."""


class Packed:
    """Values in memory that stays where it is."""

    def __init__(self, values: Values) -> None:
        self._names = sorted(values, key=lambda name: -values[name].element_size())  # each starts at a multiple of it
        self._dtypes = [values[name].dtype for name in self._names]
        self._bytes = torch.cat(self._pieces(values))
        self._sizes = [values[name].nbytes for name in self._names]
        self.values = self._split(self._bytes)

    def fill(self, values: Values) -> None:
        """Write other values of the same names, shapes and types in their places."""
        torch.cat(self._pieces(values), out=self._bytes)

    def copies(self) -> dict[str, Tensor]:
        """Return the values in memory of their own."""
        return self._split(self._bytes.clone())

    def _pieces(self, values: Values) -> list[Tensor]:
        return [values[name].view(torch.uint8) for name in self._names]

    def _split(self, whole: Tensor) -> dict[str, Tensor]:
        pieces = torch.split(whole, self._sizes)
        return {n: piece.view(dtype) for n, piece, dtype in zip(self._names, pieces, self._dtypes, strict=True)}

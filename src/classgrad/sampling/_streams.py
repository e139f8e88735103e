"""Endless shuffled passes over a set of examples that can be read from any position."""

from hashlib import blake2b

import torch
from torch import Tensor


class Stream:
    """Pass after pass over `members`, each in a new random order.

    Position p lies in pass p // len(members). The orders depend only on the key and the stream's number, so a
    position can be read without reading those before it: that is what lets a sampler stop, continue elsewhere and
    jump to an epoch. Passes are shuffled in decks of `passes` at a time, and the latest deck is kept. `members` given
    as a range from 0 are never laid out: a shuffle of them is their order.
    """

    def __init__(self, members: Tensor | range, number: int, passes: int) -> None:
        self._members = members
        self._number = number
        self._passes = passes
        self._at: tuple[int, int] | None = None
        self._deck = torch.empty(0, dtype=torch.int64)

    def read(self, key: int, start: int, stop: int) -> Tensor:
        """Give the examples at positions `start` to `stop` (excluded) under `key`."""
        size = self._passes * len(self._members)
        parts = []
        while start < stop:
            number, offset = divmod(start, size)
            end = min(size, offset + stop - start)
            parts.append(self._deck_at(key, number)[offset:end])
            start += end - offset
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _deck_at(self, key: int, number: int) -> Tensor:
        if self._at != (key, number):
            generator = torch.Generator().manual_seed(_seed(key, self._number, number))
            places = _shuffles(self._passes, len(self._members), generator)
            self._deck = places if isinstance(self._members, range) else self._members[places]
            self._at = (key, number)
        return self._deck


def _seed(*numbers: int) -> int:
    return int.from_bytes(blake2b(repr(numbers).encode(), digest_size=8).digest(), "little")


def _shuffles(passes: int, size: int, generator: torch.Generator) -> Tensor:
    """Independent random orders of range(size), one after the other."""
    if passes == 1:
        return torch.randperm(size, generator=generator)
    # 53-bit keys: equal ones, which would favour the lower index, do not occur in practice
    return torch.rand(passes, size, generator=generator, dtype=torch.float64).argsort(dim=1).flatten()

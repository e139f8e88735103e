"""The batches of a seed stay what they are: runs made with them can be made again."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from classgrad import sampling

LABELS = [0] * 12 + [1] * 5 + [2] * 2
BATCHES: dict[str, tuple[dict[str, Any], list[list[int]]]] = {
    "ShuffledBatches": ({"batch_size": 6}, [[2, 8, 11, 14, 16, 17], [0, 4, 6, 7, 9, 18]]),
    "ProportionalBatches": ({"batch_size": 6}, [[2, 5, 6, 3, 14, 17], [1, 10, 0, 9, 15, 18]]),
    "PowerBatches": ({"batch_size": 6, "alpha": 0.5}, [[2, 5, 6, 14, 15, 17], [3, 1, 10, 12, 16, 18]]),
    "BalancedBatches": ({"per_class": 2}, [[2, 5, 14, 15, 17, 18], [6, 3, 12, 16, 17, 18]]),
    "UndersampledBatches": ({"per_class": 1}, [[2, 14, 17], [5, 15, 18]]),
}


@pytest.mark.parametrize("name", BATCHES)
def test_the_first_batches_of_seed_0(name: str) -> None:
    options, expected = BATCHES[name]
    sampler = getattr(sampling, name)(LABELS, **options, generator=torch.Generator().manual_seed(0))
    assert list(sampler)[:2] == expected

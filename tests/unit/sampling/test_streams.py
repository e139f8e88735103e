from collections import Counter
from itertools import permutations

import pytest
import torch

from classgrad.sampling._streams import Stream

MEMBERS = torch.tensor([4, 9, 11, 30])


@pytest.mark.parametrize("passes", [1, 3])
def test_every_pass_is_a_permutation(passes: int) -> None:
    stream = Stream(MEMBERS, number=0, passes=passes)
    for row in stream.read(5, 0, 40).view(10, 4):
        assert sorted(row.tolist()) == MEMBERS.tolist()


@pytest.mark.parametrize("passes", [1, 3])
def test_any_part_can_be_read_alone_and_in_any_order(passes: int) -> None:
    whole = Stream(MEMBERS, 2, passes).read(5, 0, 60).tolist()
    stream = Stream(MEMBERS, 2, passes)
    for start, stop in [(50, 60), (0, 3), (11, 37), (12, 24), (7, 8)]:
        assert stream.read(5, start, stop).tolist() == whole[start:stop]


@pytest.mark.parametrize("passes", [1, 5000])
def test_all_orders_are_equally_likely(passes: int) -> None:
    rows = Stream(torch.arange(3), 0, passes).read(1, 0, 15_000).view(-1, 3).tolist()
    frequency = Counter(map(tuple, rows))
    assert set(frequency) == set(permutations(range(3)))
    chi_squared = sum((observed - 5000 / 6) ** 2 / (5000 / 6) for observed in frequency.values())
    assert chi_squared < 20.5  # the 0.1 % point with five degrees of freedom


def test_keys_and_numbers_give_other_orders() -> None:
    members = torch.arange(100)
    read = {(k, n): tuple(Stream(members, n, 1).read(k, 0, 100).tolist()) for k in (1, 2) for n in (0, 1)}
    assert len(set(read.values())) == 4

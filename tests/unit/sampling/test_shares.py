from itertools import product

import pytest

from classgrad.sampling._shares import shares


def closest_composition(sizes: list[int], batch_size: int) -> float:
    """The smallest squared distance to the exact shares that whole numbers of at least one can have."""
    exact = [batch_size * size / sum(sizes) for size in sizes]
    return min(
        sum((k - q) ** 2 for k, q in zip(counts, exact, strict=True))
        for counts in product(range(1, batch_size + 1), repeat=len(sizes))
        if sum(counts) == batch_size
    )


@pytest.mark.parametrize("sizes", [[5, 5, 5], [7, 2, 3], [10, 9, 1], [4, 4, 2, 2], [3, 11, 6]])
@pytest.mark.parametrize("batch_size", [6, 8, 11])
def test_no_composition_is_closer_to_the_exact_shares(sizes: list[int], batch_size: int) -> None:
    exact = [batch_size * size / sum(sizes) for size in sizes]
    counts = shares(sizes, batch_size, alpha=1.0)
    distance = sum((k - q) ** 2 for k, q in zip(counts, exact, strict=True))
    if min(exact) >= 1:
        assert distance == pytest.approx(closest_composition(sizes, batch_size))
    assert sum(counts) == batch_size
    assert min(counts) >= 1


def test_the_batches_of_mul10() -> None:
    # exact: 412.2 247.3 148.4 89.0 53.4 32.0 19.2 11.5 6.8 4.1; the four left over go to .99, .84, .46 and .42
    sizes = [5000, 3000, 1800, 1080, 648, 388, 233, 139, 83, 50]
    assert shares(sizes, 1024, alpha=1.0) == (412, 247, 148, 89, 54, 32, 19, 12, 7, 4)


def test_a_share_below_one_is_raised_to_one_at_the_cost_of_the_larger_classes() -> None:
    assert shares([1000, 1, 1, 1], 8, alpha=1.0) == (5, 1, 1, 1)
    assert shares([500, 500, 1], 5, alpha=1.0) == (2, 2, 1)


def test_raising_some_can_push_others_below_one() -> None:
    # 100 : 10 : 1 : 1 : 1 over 7 first gives 10's class 0.62 < 1 too
    assert shares([100, 10, 1, 1, 1], 7, alpha=1.0) == (3, 1, 1, 1, 1)
    # first 6 * 21/122 > 1, then (6 - 1) * 21/121 < 1
    assert shares([100, 21, 1], 6, alpha=1.0) == (4, 1, 1)


def test_ties_go_to_the_larger_then_the_earlier_class() -> None:
    assert shares([5, 5], 3, alpha=1.0) == (2, 1)
    assert shares([3, 9], 6, alpha=1.0) == (1, 5)


def test_alpha_zero_divides_equally_and_the_root_in_between() -> None:
    assert shares([900, 100], 10, alpha=0.0) == (5, 5)
    assert shares([900, 100], 40, alpha=0.5) == (30, 10)
    assert shares([900, 100], 40, alpha=1.0) == (36, 4)


def test_an_empty_class_gets_nothing() -> None:
    assert shares([6, 0, 2], 4, alpha=1.0) == (3, 0, 1)
    assert shares([6, 0, 2], 4, alpha=0.0) == (2, 0, 2)

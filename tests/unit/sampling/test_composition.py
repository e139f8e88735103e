from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from classgrad._errors import InputError
from classgrad.sampling import (
    BalancedBatches,
    PowerBatches,
    ProportionalBatches,
    ShuffledBatches,
    UndersampledBatches,
)

LABELS = [0] * 60 + [5] * 12 + [-3] * 5


def drawn(sampler: Any, label: int, epochs: int = 1) -> list[int]:
    """The examples of one class in the order in which they come."""
    return [i for _ in range(epochs) for batch in sampler for i in batch if LABELS[i] == label]


def test_one_pass_of_the_largest_class_is_an_epoch() -> None:
    sampler = BalancedBatches(LABELS, per_class=7)
    assert len(sampler) == len(list(sampler)) == 9  # 60 / 7
    sampler = BalancedBatches(LABELS, per_class=6)
    assert Counter(drawn(sampler, 0)) == dict.fromkeys(range(60), 1)


def test_a_class_that_runs_out_is_reshuffled_and_starts_again() -> None:
    sampler = BalancedBatches(LABELS, per_class=6)
    order = drawn(sampler, -3)
    assert Counter(order) == dict.fromkeys(range(72, 77), 12)
    passes = [tuple(order[k : k + 5]) for k in range(0, 60, 5)]
    assert all(sorted(one) == list(range(72, 77)) for one in passes)
    assert len(set(passes)) > 6


def test_what_an_epoch_leaves_over_opens_the_next() -> None:
    sampler = UndersampledBatches(LABELS, per_class=2)
    assert len(sampler) == 2
    assert sorted(drawn(sampler, 0, epochs=15)) == list(range(60))


def test_batches_are_grouped_by_ascending_class() -> None:
    for sampler in (
        ProportionalBatches(LABELS, 20),
        BalancedBatches(LABELS, per_class=3),
        ShuffledBatches(LABELS, 20),
    ):
        for batch in sampler:
            classes = [LABELS[i] for i in batch]
            assert classes == sorted(classes)


def test_proportional_and_balanced_are_the_ends_of_power() -> None:
    labels = np.repeat([2, 0, 1], [50, 30, 20])
    assert list(PowerBatches(labels, 12, alpha=1)) == list(ProportionalBatches(labels, 12))
    assert list(PowerBatches(labels, 12, alpha=0)) == list(BalancedBatches(labels, batch_size=12))


def test_equal_classes_with_unequal_shares_all_pass_once() -> None:
    sampler = ProportionalBatches([0] * 10 + [1] * 10, batch_size=3)
    assert sampler.counts == (2, 1)
    assert {i for batch in sampler for i in batch} == set(range(20))


def test_balanced_takes_the_largest_equal_number_that_fits() -> None:
    sampler = BalancedBatches(LABELS, batch_size=11)
    assert (sampler.per_class, sampler.batch_size, sampler.counts) == (3, 9, (3, 3, 3))


def test_balanced_can_hold_more_than_a_class_has() -> None:
    sampler = BalancedBatches([0, 0, 0, 1], per_class=7)
    assert [Counter(batch)[3] for batch in sampler] == [7]


def test_attributes_repeat_the_arguments() -> None:
    generator = torch.Generator().manual_seed(4)
    sampler = PowerBatches(LABELS, 20, 0.5, generator=generator, num_replicas=2, rank=1)
    assert sampler.labels is LABELS
    assert sampler.generator is generator
    assert (sampler.batch_size, sampler.alpha, sampler.num_replicas, sampler.rank) == (20, 0.5, 2, 1)
    assert (sampler.classes, sampler.sizes, sampler.drop_last) == ((-3, 0, 5), (5, 60, 12), True)
    assert UndersampledBatches(LABELS, per_class=4).per_class == 4
    assert ShuffledBatches(LABELS, 20).drop_last is False


def test_a_class_of_one_example_is_in_every_batch() -> None:
    sampler = ProportionalBatches([0] * 999 + [1], 100)
    assert sampler.counts == (99, 1)
    assert all(batch[-1] == 999 for batch in sampler)


def test_a_declared_class_without_examples_is_left_out_with_a_warning_at_the_callers_line() -> None:
    for make in (
        lambda: ProportionalBatches([0, 2, 2, 2], 2, classes=range(4)),
        lambda: BalancedBatches([0, 2, 2, 2], batch_size=2, classes=range(4)),
        lambda: UndersampledBatches([0, 2, 2, 2], per_class=1, classes=range(4)),
    ):
        with pytest.warns(UserWarning, match="no examples of declared classes: 1, 3") as caught:
            sampler = make()
        assert [warning.filename for warning in caught] == [__file__]
        assert (sampler.classes, sampler.counts) == ((0, 1, 2, 3), (1, 0, 1, 0))
        assert all(len(batch) == 2 for batch in sampler)
    with pytest.warns(UserWarning, match="1, 3") as caught:
        ShuffledBatches([0, 2, 2, 2], 2, classes=range(4))
    assert [warning.filename for warning in caught] == [__file__]


def test_shuffled_batches_are_one_random_order_of_all() -> None:
    sampler = ShuffledBatches(LABELS, 20)
    epochs = [list(sampler) for _ in range(3)]
    for batches in epochs:
        assert [len(batch) for batch in batches] == [20, 20, 20, 17]
        assert sorted(i for batch in batches for i in batch) == list(range(77))
    assert epochs[0] != epochs[1]
    assert [len(batch) for batch in ShuffledBatches(LABELS, 20, drop_last=True)] == [20, 20, 20]
    assert [len(batch) for batch in ShuffledBatches(LABELS, 11)] == [11] * 7
    assert [len(batch) for batch in ShuffledBatches(LABELS, 500)] == [77]


def test_shuffled_batches_differ_in_their_classes() -> None:
    counts = {sum(LABELS[i] == 5 for i in batch) for batch in ShuffledBatches(LABELS, 7)}
    assert len(counts) > 1


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda: ProportionalBatches(LABELS, 2), "cannot hold each of the 3 classes; the smallest that works is 3"),
        (lambda: PowerBatches(LABELS, 2, 0.5), "the smallest that works is 3"),
        (lambda: BalancedBatches(LABELS, batch_size=2), "the smallest that works is 3"),
        (lambda: UndersampledBatches(LABELS, batch_size=2), "the smallest that works is 3"),
        (lambda: ProportionalBatches(LABELS, 78), "more than the 77 examples; the largest that works is 77"),
        (lambda: ProportionalBatches(LABELS, 0), "batch_size must be a positive integer; found 0"),
        (lambda: ProportionalBatches(LABELS, 8.0), "batch_size must be a positive integer; found 8.0"),  # type: ignore[arg-type]
        (lambda: BalancedBatches(LABELS), "either per_class or batch_size; found per_class=None, batch_size=None"),
        (lambda: BalancedBatches(LABELS, per_class=2, batch_size=6), "either per_class or batch_size"),
        (lambda: BalancedBatches(LABELS, per_class=-1), "per_class must be a positive integer; found -1"),
        (lambda: UndersampledBatches(LABELS, per_class=6), "more than the 5 examples of the smallest class"),
        (lambda: PowerBatches(LABELS, 20, 1.5), "alpha must be from 0 .* found 1.5"),
        (lambda: PowerBatches(LABELS, 20, float("nan")), "alpha .* found nan"),
        (lambda: ShuffledBatches(LABELS, 78, drop_last=True), "drop_last leaves no batch"),
        (lambda: ProportionalBatches(LABELS, 20, generator=1), "generator must be a torch.Generator"),  # type: ignore[arg-type]
    ],
)
def test_bad_arguments_are_named(make: Any, found: str) -> None:
    with pytest.raises(InputError, match=found):
        make()


def test_there_is_no_limit_at_two_to_the_24() -> None:
    labels = np.zeros(2**24 + 50, dtype=np.uint8)
    labels[-3:] = 1
    sampler = ProportionalBatches(labels, batch_size=2**20)
    seen = torch.zeros(len(labels), dtype=torch.uint8)
    for batch in sampler.tensors():
        seen[batch] = 1
    assert bool(seen.all())


def test_batches_larger_than_what_is_laid_out_at_once() -> None:
    labels = np.arange(2**19) % 2
    batches = list(BalancedBatches(labels, per_class=2**18).tensors())
    assert len(batches) == 1
    assert torch.equal(batches[0].sort().values, torch.arange(2**19))


def test_many_classes_of_one_example_in_every_batch() -> None:
    labels = np.arange(6_000) % 3_000
    for batch in BalancedBatches(labels, per_class=1).tensors():
        assert torch.equal(batch % 3_000, torch.arange(3_000))

import copy
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
import torch

from classgrad._errors import InputError
from classgrad.sampling import (
    BalancedBatches,
    ClassBatches,
    PowerBatches,
    ProportionalBatches,
    ShuffledBatches,
    UndersampledBatches,
)

LABELS = ["a"] * 47 + ["b"] * 13 + ["c"] * 6
Make = Callable[..., ClassBatches]

SAMPLERS: dict[str, Make] = {
    "proportional": lambda **options: ProportionalBatches(LABELS, 11, **options),
    "balanced": lambda **options: BalancedBatches(LABELS, per_class=4, **options),
    "power": lambda **options: PowerBatches(LABELS, 11, 0.5, **options),
    "undersampled": lambda **options: UndersampledBatches(LABELS, per_class=2, **options),
    "shuffled": lambda **options: ShuffledBatches(LABELS, 11, **options),
}
every_sampler = pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS.keys())


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@every_sampler
def test_a_saved_state_goes_on_with_the_batches_that_would_have_come(make: Make, tmp_path: Path) -> None:
    reference = make(generator=seeded(3))
    expected = [batch for _ in range(4) for batch in reference]
    for stop in range(2 * len(reference) + 1):
        sampler, taken = make(generator=seeded(3)), 0
        while taken < stop:
            for _ in islice(sampler, stop - taken):
                taken += 1
        torch.save(sampler.state_dict(), tmp_path / "state.pt")
        resumed = make(generator=seeded(99))
        resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
        rest = [batch for _ in range(2) for batch in resumed]
        assert rest == expected[stop : stop + len(rest)]
        assert len(rest) == 2 * len(reference) - stop % len(reference)


@every_sampler
def test_lists_and_tensors_are_the_same_batches_and_share_the_state(make: Make) -> None:
    lists, tensors = make(), make()
    assert list(lists) == [batch.tolist() for batch in tensors.tensors()]
    assert next(tensors.tensors("cpu")).dtype == torch.int64
    next(iter(lists))
    assert lists.state_dict() == tensors.state_dict()


@every_sampler
def test_writing_into_a_batch_changes_no_other(make: Make) -> None:
    sampler = make()
    expected = list(sampler)
    sampler.set_epoch(0)
    for batch in sampler.tensors():
        batch.zero_()
    sampler.set_epoch(0)
    assert list(sampler) == expected


@every_sampler
def test_set_epoch_reaches_an_epoch_directly(make: Make) -> None:
    running, jumping = make(), make()
    epochs = [list(running) for _ in range(4)]
    for epoch in (2, 0, 3, 3):
        jumping.set_epoch(epoch)
        assert jumping.epoch == epoch
        assert list(jumping) == epochs[epoch]


def test_set_epoch_keeps_a_place_loaded_in_that_epoch_and_leaves_it_for_another() -> None:
    sampler = SAMPLERS["proportional"]()
    epochs = [list(sampler) for _ in range(3)]
    resumed = SAMPLERS["proportional"]()
    state = {**sampler.state_dict(), "epoch": 1, "batch": 2}
    resumed.load_state_dict(state)
    resumed.set_epoch(1)
    assert list(resumed) == epochs[1][2:]
    resumed.load_state_dict(state)
    resumed.set_epoch(2)
    assert list(resumed) == epochs[2]
    with pytest.raises(InputError, match="epoch must not be negative; found -1"):
        resumed.set_epoch(-1)


def test_an_epoch_left_early_is_followed_by_the_next_one() -> None:
    sampler = SAMPLERS["balanced"]()
    epochs = [list(sampler) for _ in range(2)]
    other = SAMPLERS["balanced"]()
    next(iter(other))
    assert list(other) == epochs[1]


def test_two_iterators_do_not_disturb_each_other() -> None:
    sampler = SAMPLERS["balanced"]()
    expected = [list(sampler), list(sampler)]
    sampler.set_epoch(0)
    pairs = list(zip(sampler, sampler, strict=True))
    assert [[pair[k] for pair in pairs] for k in (0, 1)] == expected


def test_the_loop_can_say_how_many_batches_it_used() -> None:
    sampler = SAMPLERS["shuffled"]()
    expected = list(sampler)
    sampler.set_epoch(0)
    prefetched = list(islice(sampler, 5))
    assert prefetched == expected[:5]
    resumed = SAMPLERS["shuffled"]()
    resumed.load_state_dict(sampler.state_dict(done=3))
    assert list(resumed) == expected[3:]
    assert sampler.state_dict(done=len(sampler)) == {**sampler.state_dict(), "epoch": 1, "batch": 0}
    with pytest.raises(InputError, match="done must be from 0 to the 6 batches of an epoch; found 7"):
        sampler.state_dict(done=7)


@pytest.mark.parametrize(
    ("state", "found"),
    [
        ({"epoch": 0}, "it lacks batch, key, fingerprint"),
        (BalancedBatches(LABELS, per_class=3).state_dict(), "of another sampler"),
        (BalancedBatches(LABELS[::-1], per_class=4).state_dict(), "of another sampler"),
        (UndersampledBatches(LABELS, per_class=4).state_dict(), "of another sampler"),
        ({**BalancedBatches(LABELS, per_class=4).state_dict(), "batch": 12}, "found epoch 0, batch 12"),
        ({**BalancedBatches(LABELS, per_class=4).state_dict(), "epoch": -1}, "found epoch -1, batch 0"),
    ],
)
def test_a_state_of_something_else_is_refused(state: dict[str, int], found: str) -> None:
    sampler = BalancedBatches(LABELS, per_class=4)
    expected = list(BalancedBatches(LABELS, per_class=4))
    with pytest.raises(InputError, match=found):
        sampler.load_state_dict(state)
    assert list(sampler) == expected


@every_sampler
def test_the_generator_decides_and_the_global_one_is_left_alone(make: Make) -> None:
    before = torch.get_rng_state()
    first, again, other = list(make()), list(make(generator=seeded(0))), list(make(generator=seeded(1)))
    assert first == again != other
    shared = seeded(0)
    assert list(make(generator=shared)) != list(make(generator=shared))
    assert torch.equal(before, torch.get_rng_state())


def test_a_copy_goes_its_own_way() -> None:
    sampler = SAMPLERS["power"]()
    iterator = iter(sampler)
    next(iterator)
    twin = copy.deepcopy(sampler)
    twin.load_state_dict(twin.state_dict())
    assert list(twin) == list(iterator)


@every_sampler
@pytest.mark.parametrize("num_replicas", [2, 3, 5])
def test_shards_are_disjoint_and_together_the_single_process_batch(make: Make, num_replicas: int) -> None:
    shards = [list(make(num_replicas=num_replicas, rank=rank)) for rank in range(num_replicas)]
    for whole, *parts in zip(make(), *shards, strict=True):
        assert sorted(i for part in parts for i in part) == sorted(whole)
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
        for part in parts:
            assert [LABELS[i] for i in part] == sorted(LABELS[i] for i in part)
        for name in "abc":
            numbers = [sum(LABELS[i] == name for i in part) for part in parts]
            assert max(numbers) - min(numbers) <= 1


def test_a_state_can_be_continued_on_another_number_of_replicas() -> None:
    sampler = SAMPLERS["proportional"](num_replicas=2, rank=1)
    next(iter(sampler))
    single = SAMPLERS["proportional"]()
    expected = list(single)[1:]
    single.load_state_dict(sampler.state_dict())
    assert list(single) == expected


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"rank": 1}, "rank must be from 0 to num_replicas - 1 = 0; found 1"),
        ({"rank": "a"}, "rank must be an integer; found 'a'"),
        ({"num_replicas": 1.5}, "num_replicas must be a positive integer; found 1.5"),
        ({"num_replicas": 2, "rank": -1}, "rank must be from 0 to num_replicas - 1 = 1; found -1"),
        ({"num_replicas": 0}, "num_replicas must be a positive integer; found 0"),
        ({"num_replicas": 12}, "each of num_replicas=12; the smallest holds 11: use a larger batch_size$"),
    ],
)
def test_replicas_that_cannot_be_are_refused(options: dict[str, int], found: str) -> None:
    with pytest.raises(InputError, match=found):
        SAMPLERS["proportional"](**options)


def test_a_last_batch_too_small_for_the_replicas_is_refused() -> None:
    with pytest.raises(InputError, match="the smallest holds 2: use a larger batch_size or drop_last=True"):
        ShuffledBatches(LABELS, 8, num_replicas=3)
    assert len(ShuffledBatches(LABELS, 8, num_replicas=3, drop_last=True)) == 8

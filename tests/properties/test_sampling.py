"""The guarantees of the samplers, on generated labels and settings."""

from collections import Counter
from itertools import islice
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from classgrad.sampling import (
    BalancedBatches,
    ClassBatches,
    PowerBatches,
    ProportionalBatches,
    ShuffledBatches,
    UndersampledBatches,
)

NAMES = st.one_of(
    st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=6, unique=True),
    st.lists(st.text(max_size=4), min_size=1, max_size=6, unique=True),
)


@st.composite
def labellings(draw: st.DrawFn) -> list[Any]:
    """Labels of a few classes, of any names and sizes, in any order."""
    labels = [name for name in draw(NAMES) for _ in range(draw(st.integers(1, 40)))]
    return draw(st.permutations(labels))


@st.composite
def recipes(draw: st.DrawFn) -> tuple[type[ClassBatches], list[Any], dict[str, Any]]:
    """A sampler whose batches have a fixed composition, its labels and its arguments."""
    labels = draw(labellings())
    sizes = Counter(labels)
    kind = draw(st.sampled_from([ProportionalBatches, PowerBatches, BalancedBatches, UndersampledBatches]))
    options: dict[str, Any] = {"generator": torch.Generator().manual_seed(draw(st.integers(0, 2**32)))}
    if kind is UndersampledBatches:
        options["per_class"] = draw(st.integers(1, min(sizes.values())))
    elif kind is BalancedBatches:
        options["per_class"] = draw(st.integers(1, 9))
    else:
        options["batch_size"] = draw(st.integers(len(sizes), len(labels)))
    if kind is PowerBatches:
        options["alpha"] = draw(st.floats(0, 1))
    return kind, labels, options


@settings(deadline=None, max_examples=150)
@given(recipes(), st.integers(1, 3))
def test_composition_length_and_no_repetition(
    recipe: tuple[type[ClassBatches], list[Any], dict[str, Any]], epochs: int
) -> None:
    kind, labels, options = recipe
    sampler: Any = kind(labels, **options)
    order: dict[Any, list[int]] = {name: [] for name in sampler.classes}
    for _ in range(epochs):
        batches = list(sampler)
        assert len(batches) == len(sampler) >= 1
        for batch in batches:
            assert len(batch) == sampler.batch_size
            expected = [name for name, count in zip(sampler.classes, sampler.counts, strict=True) for _ in range(count)]
            assert [labels[i] for i in batch] == expected
            for i in batch:
                order[labels[i]].append(i)
    assert sampler.classes == tuple(sorted(set(labels)))
    assert min(sampler.counts) >= 1
    for name, sequence in order.items():
        members = [i for i, label in enumerate(labels) if label == name]
        for start in range(0, len(sequence), len(members)):
            one_pass = sequence[start : start + len(members)]
            assert set(one_pass) <= set(members)
            assert len(set(one_pass)) == len(one_pass)


@settings(deadline=None, max_examples=100)
@given(recipes())
def test_the_epoch_is_one_pass(recipe: tuple[type[ClassBatches], list[Any], dict[str, Any]]) -> None:
    kind, labels, options = recipe
    sampler: Any = kind(labels, **options)
    sizes = Counter(labels)
    drawn = dict(zip(sampler.classes, (count * len(sampler) for count in sampler.counts), strict=True))
    if kind is UndersampledBatches:
        smallest = min(sizes.values())
        assert smallest - sampler.per_class < len(sampler) * sampler.per_class <= smallest
    else:
        largest = [name for name in sizes if sizes[name] == max(sizes.values())]
        assert all(drawn[name] >= sizes[name] for name in largest)
        seen = {i for batch in sampler for i in batch}
        assert {i for i, label in enumerate(labels) if label in largest} <= seen
        one_less = {name: drawn[name] - drawn[name] // len(sampler) for name in largest}
        assert any(one_less[name] < sizes[name] for name in largest)


@settings(deadline=None, max_examples=150)
@given(labellings(), st.data())
def test_counts_follow_the_shares(labels: list[Any], data: st.DataObject) -> None:
    sizes = Counter(labels)
    batch_size = data.draw(st.integers(len(sizes), len(labels)))
    sampler = ProportionalBatches(labels, batch_size)
    counts = dict(zip(sampler.classes, sampler.counts, strict=True))
    assert sum(counts.values()) == batch_size
    for name, size in sizes.items():
        share = batch_size * size / len(labels)
        assert counts[name] <= size
        assert counts[name] < share + 1
        assert all(counts[name] >= counts[other] for other in sizes if sizes[other] < size)
    if all(batch_size * size >= len(labels) for size in sizes.values()):
        assert all(abs(counts[name] - batch_size * size / len(labels)) < 1 for name, size in sizes.items())


@settings(deadline=None, max_examples=80)
@given(recipes(), st.data())
def test_resuming_anywhere_and_shards_of_any_number(
    recipe: tuple[type[ClassBatches], list[Any], dict[str, Any]], data: st.DataObject
) -> None:
    kind, labels, options = recipe
    seed = options["generator"].initial_seed()

    def build(**replicas: int) -> Any:
        return kind(labels, **{**options, **replicas, "generator": torch.Generator().manual_seed(seed)})

    sampler = build()
    epochs = [list(sampler) for _ in range(3)]
    epoch, stop = data.draw(st.integers(0, 2)), data.draw(st.integers(0, len(sampler)))
    stopped = build()
    stopped.set_epoch(epoch)
    assert list(islice(stopped, stop)) == epochs[epoch][:stop]
    resumed = kind(labels, **{**options, "generator": torch.Generator().manual_seed(seed + 1)})
    resumed.load_state_dict(stopped.state_dict())
    if stop < len(sampler):
        assert list(resumed) == epochs[epoch][stop:]
    elif epoch < 2:
        assert list(resumed) == epochs[epoch + 1]

    replicas = data.draw(st.integers(1, min(6, sampler.batch_size)))
    shards = [list(build(num_replicas=replicas, rank=rank)) for rank in range(replicas)]
    for whole, *parts in zip(epochs[0], *shards, strict=True):
        assert Counter(i for part in parts for i in part) == Counter(whole)
        assert min(map(len, parts)) >= 1


@settings(deadline=None, max_examples=80)
@given(labellings(), st.integers(1, 50), st.booleans(), st.integers(0, 2**32))
def test_shuffled_batches_use_every_example_once(labels: list[Any], size: int, drop_last: bool, seed: int) -> None:
    size = min(size, len(labels)) if drop_last else size
    generator = torch.Generator().manual_seed(seed)
    sampler = ShuffledBatches(labels, size, drop_last=drop_last, generator=generator)
    for _ in range(2):
        batches = list(sampler)
        assert len(batches) == len(sampler)
        used = [i for batch in batches for i in batch]
        assert len(set(used)) == len(used) == (len(labels) // size * size if drop_last else len(labels))
        for batch in batches:
            assert [labels[i] for i in batch] == sorted(labels[i] for i in batch)

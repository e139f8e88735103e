import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, TensorDataset

from classgrad.sampling import BalancedBatches, ShuffledBatches, labels_of

DATA = TensorDataset(torch.arange(40), torch.tensor([0] * 30 + [1] * 10))


def test_a_data_loader_delivers_the_batches() -> None:
    sampler = BalancedBatches(labels_of(DATA), per_class=3)
    loader = DataLoader(DATA, batch_sampler=sampler)
    assert isinstance(sampler, BatchSampler)
    assert len(loader) == len(sampler) == 10
    expected = list(BalancedBatches(labels_of(DATA), per_class=3))
    for (indices, classes), batch in zip(loader, expected, strict=True):
        assert indices.tolist() == batch
        assert classes.tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_worker_processes_deliver_the_same_batches_and_the_state_follows_the_loop() -> None:
    expected = list(ShuffledBatches(labels_of(DATA), 7))
    sampler = ShuffledBatches(labels_of(DATA), 7)
    loader = DataLoader(DATA, batch_sampler=sampler, num_workers=2, multiprocessing_context="fork")
    seen = []
    for done, (indices, _) in enumerate(loader, start=1):
        seen.append(indices.tolist())
        if done == 2:
            state = sampler.state_dict(done=done)
    assert seen == expected
    resumed = ShuffledBatches(labels_of(DATA), 7)
    resumed.load_state_dict(state)
    assert [indices.tolist() for indices, _ in DataLoader(DATA, batch_sampler=resumed)] == expected[2:]


def test_lightning_finds_what_it_asks_a_batch_sampler_for() -> None:
    sampler = BalancedBatches(labels_of(DATA), batch_size=6)
    assert (sampler.batch_size, sampler.drop_last) == (6, True)
    sampler.sampler.set_epoch(3)
    assert sampler.epoch == 3

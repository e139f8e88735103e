"""Runs whose images and weights lie in memory with their channels side by side."""

import dataclasses

import numpy as np
import pytest
import torch

from classgrad import InputError
from classgrad.data import Dataset, Preprocessing, Split, gaussian_classes
from classgrad.training import ALGORITHMS, RunSpec, load_trained, train
from classgrad.training._trainer import Trainer

CPU = torch.device("cpu")


def images():
    generator = torch.Generator().manual_seed(0)
    y = torch.repeat_interleave(torch.arange(2), torch.tensor([40, 12]))
    x = torch.randint(128, (52, 3, 8, 8), dtype=torch.uint8, generator=generator) + 60 * y.view(-1, 1, 1, 1).byte()
    split = Split(x, y, torch.arange(52))
    facts = Preprocessing(("a", "b"), (3, 8, 8), (0.3,) * 3, (0.2,) * 3)
    return Dataset("noise", None, split, split, split, facts, "noise")


def spec(name, **changes):
    settings = {"lr": 0.02, "steps": 6, "batch_size": 16, "device": "cpu", "model": "simple_cnn", "grid": "all"}
    return RunSpec("noise", name, **{**settings, "channels_last": True, **changes})


def test_weights_and_batches_lie_that_way():
    trainer = Trainer(spec("pcnsgd+o"), images(), CPU)
    for _ in range(2):
        trainer.update(trainer.next_batch())
    weights = [p for p in trainer.parameters if p.dim() == 4]
    assert len(weights) == 2
    for tensor in (*weights, *(data.batch(slice(0, 3))[0] for data in trainer.data.values())):
        assert tensor.is_contiguous(memory_format=torch.channels_last)
        assert not tensor.is_contiguous()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_numbers_are_the_same(name):
    changes = {"precision": "float64", "crop": 1, "optimizer_options": {"momentum": 0.5}}
    found, expected = (train(spec(name, channels_last=way, **changes), data=images()) for way in (True, False))
    np.testing.assert_allclose(found.loss("train"), expected.loss("train"), rtol=1e-9)
    np.testing.assert_allclose(found["gram"], expected["gram"], rtol=1e-7)


@pytest.mark.parametrize("name", ["sgd", "pcnsgd+o", "pcnsgd+r", "r-pcngd"])
def test_a_run_that_died_ends_like_one_that_did_not(name, tmp_path):
    chosen = spec(name, steps=14, every=True, optimizer_options={"momentum": 0.9})
    straight = train(chosen, data=images())

    def die(progress):
        if progress.step >= 7 and progress.point is not None:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(chosen, tmp_path, data=images(), checkpoint_seconds=0, report=die)
    other = dataclasses.replace(chosen, channels_last=False)
    with pytest.raises(InputError, match="is of another run"):
        train(other, tmp_path, data=images(), resume=True)
    assert train(chosen, tmp_path, data=images(), resume=True).differences(straight) == []
    assert load_trained(tmp_path).model(torch.zeros(1, 3, 8, 8)).isfinite().all()


def test_it_is_for_images_and_convolutions():
    features = gaussian_classes([30, 9], dimension=4, overlap=0.1, test_per_class=6, seed=2)
    with pytest.raises(InputError, match=r"`channels_last` is for images. Found examples of shape \(4,\)") as error:
        train(spec("gd", model="mlp"), data=features)
    assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="`channels_last` is for networks with convolutions"):
        train(spec("gd", model="mlp"), data=images())

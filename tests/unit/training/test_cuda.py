"""Runs on a CUDA device: the same bits, the same physics."""

import numpy as np
import pytest
import torch

from classgrad.data import Dataset, Preprocessing, Split, gaussian_classes
from classgrad.training import ALGORITHMS, RunSpec, train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

FEATURES = gaussian_classes([300, 60, 12], dimension=8, overlap=0.1, test_per_class=50, seed=3)


def images():
    generator = torch.Generator().manual_seed(0)
    y = torch.repeat_interleave(torch.arange(2), torch.tensor([200, 40]))
    x = torch.randint(128, (240, 3, 32, 32), dtype=torch.uint8, generator=generator) + 60 * y.view(-1, 1, 1, 1).byte()
    split = Split(x, y, torch.arange(240))
    return Dataset(
        "noise", None, split, split, split, Preprocessing(("a", "b"), (3, 32, 32), (0.3,) * 3, (0.2,) * 3), "noise"
    )


def spec(name, **changes):
    settings = {"lr": 0.05, "steps": 40, "batch_size": 48, "device": "cuda", "grid": "log:12"}
    return RunSpec("data", name, **{**settings, **changes})


@pytest.mark.parametrize(("name", "options"), [*((name, {}) for name in ALGORITHMS), ("pcnsgd+o", {"refresh": 5})])
def test_the_same_seed_gives_the_same_bits_and_survives_a_crash(name, options, tmp_path):
    chosen = spec(name, every=True, rule_options=options)
    straight = train(chosen, data=FEATURES)
    assert train(chosen, data=FEATURES).differences(straight) == []

    def die(progress):
        if progress.step > 13 and progress.point is not None:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(chosen, tmp_path, data=FEATURES, checkpoint_seconds=0, report=die)
    assert train(chosen, tmp_path, data=FEATURES, resume=True).differences(straight) == []


@pytest.mark.parametrize("model", ["simple_cnn", "resnet18", "vgg16"])
@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
def test_networks_repeat_bit_for_bit_in_every_precision(model, precision):
    chosen = spec("pcnsgd+o", model=model, precision=precision, steps=6, lr=0.01, crop=2, flip=True)
    first = train(chosen, data=images())
    assert train(chosen, data=images()).differences(first) == []
    assert np.isfinite(first.loss("train")).all()
    assert first["memory_bytes"].max() > 0


def test_the_device_does_not_change_the_physics():
    on_cuda = train(spec("pcngd", precision="float64"), data=FEATURES)
    on_cpu = train(spec("pcngd", precision="float64", device="cpu"), data=FEATURES)
    np.testing.assert_allclose(on_cuda.loss("train"), on_cpu.loss("train"), rtol=1e-9)
    np.testing.assert_allclose(on_cuda["gram"], on_cpu["gram"], rtol=1e-8)


def test_switches_come_back_as_they_were():
    before = (torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision)
    train(spec("gd", precision="tf32", steps=2), data=FEATURES)
    assert (torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision) == before
    assert not torch.are_deterministic_algorithms_enabled()

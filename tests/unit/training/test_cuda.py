"""Runs on a CUDA device: the same bits, the same physics."""

import dataclasses

import numpy as np
import pytest
import torch

from classgrad.data import Dataset, Preprocessing, Split, gaussian_classes
from classgrad.dynamics import Recorder
from classgrad.training import ALGORITHMS, SEVEN, Job, RunSpec, train, train_all
from classgrad.training._loop import Loop
from classgrad.training._numerics import on_stream, own_stream
from classgrad.training._recording import run_meta
from classgrad.training._signals import Interruption
from classgrad.training._train import Task, train_together
from classgrad.training._trainer import Trainer

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


def uncaptured(chosen, data):
    """What differs from a run whose steps are not replayed, but for that setting itself."""
    found = train(chosen, data=data)
    other = train(dataclasses.replace(chosen, capture=False), data=data)
    assert found.meta["status"] == other.meta["status"]
    assert "seconds_busy" not in other.meta
    return [name for name in found.differences(other) if name != "meta 'spec'"]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_replayed_steps_have_the_bits_of_steps_that_are_run(name):
    assert uncaptured(spec(name, every=True), FEATURES) == []


@pytest.mark.parametrize("model", ["simple_cnn", "vgg16"])
@pytest.mark.parametrize("name", ["sgd", "pcnsgd+r", "pcngd"])
def test_random_numbers_are_those_of_steps_that_are_run(name, model):
    chosen = spec(name, model=model, steps=7, lr=0.01, crop=2, flip=True, optimizer_options={"momentum": 0.9})
    assert uncaptured(chosen, images()) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"schedule": "dominated-decreasing"},
        {"scheduler": "StepLR", "scheduler_options": {"step_size": 7}, "optimizer": "adam"},
        {"scheduler": "OneCycleLR", "scheduler_options": {"max_lr": 0.1, "total_steps": 50}},
        {"optimizer": "adamw", "schedule": "inverse-sqrt"},
        {"optimizer": "rmsprop"},
        {"optimizer": "adagrad"},
        {"precision": "float64"},
        {"precision": "bf16"},
        {"chunk": 20},
        {"rule_options": {"refresh": 5}},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["sgd+o", "pcngd"])
def test_settings_under_replay(name, changes):
    if name == "sgd+o" and "rule_options" in changes:
        name = "pcnsgd+o"
    assert uncaptured(spec(name, **changes), FEATURES) == []


@pytest.mark.parametrize("name", ["gd", "pcngd", "sgd"])
def test_a_diverging_run_ends_the_same_way(name):
    chosen = spec(name, lr=1e15, grid="all", every=True, optimizer_options={"momentum": 20.0})
    assert uncaptured(chosen, FEATURES) == []
    run = train(chosen, data=FEATURES)
    assert run.meta["status"] == "diverged"
    assert "diverged at step" in run.meta["message"]


def test_runs_made_in_turns_are_the_runs_made_alone():
    specs = [spec("pcnsgd+o", seed=seed) for seed in range(3)] + [spec("gd")]
    alone = [train(chosen, data=FEATURES) for chosen in specs]
    tasks = [Task(chosen, FEATURES) for chosen in specs]
    for found, expected in zip(train_together(tasks), alone, strict=True):
        assert found.differences(expected) == []


@pytest.mark.parametrize("name", SEVEN)
def test_the_loop_never_waits_for_the_device_between_points_nor_at_them(name, nothing_waits):
    """All but the batches' make-up of plain SGD, which is looked at where a point follows."""
    device = torch.device("cuda")
    chosen = spec(name, steps=500, model="simple_cnn")
    data = images()
    with on_stream(own_stream(device)):
        trainer = Trainer(chosen, data, device)
        recorder = Recorder(run_meta(chosen, data, device))
        loop = Loop(trainer, recorder, None, Interruption(), 1e9, None, data.preprocessing)
        for _ in range(60):  # an epoch and more: every kind of batch has come
            loop.step({3, 40})
        assert trainer._work.recordings > 0
        torch.cuda.synchronize()
        with nothing_waits():
            for _ in range(60):
                loop.step(() if name == "sgd" else {70, 90})
        trainer.close()


def test_several_processes_share_a_gpu():
    jobs = [Job(RunSpec("digits-bi20", "pcnsgd+o", lr=0.05, steps=20, device="cuda", seed=s), None) for s in range(2)]
    for found, expected in zip(train_all(jobs, workers=2), train_all(jobs, workers=1), strict=True):
        assert found.differences(expected) == []


@pytest.mark.parametrize(
    ("name", "last"), [("gd", False), ("sgd", True), ("pcngd", False), ("pcnsgd+o", True), ("pcnsgd+r", True)]
)
@pytest.mark.filterwarnings("ignore")  # the compiler has many
def test_a_compiled_network_trains_alike_and_repeats(name, last):
    chosen = spec(name, model="simple_cnn", steps=12, lr=0.01, channels_last=last)
    fast = dataclasses.replace(chosen, compile=True)
    found = train(fast, data=images())
    np.testing.assert_allclose(found.loss("train"), train(chosen, data=images()).loss("train"), rtol=1e-3)
    assert train(fast, data=images()).differences(found) == []
    assert uncaptured(fast, images()) == []


@pytest.mark.parametrize("model", ["simple_cnn", "resnet18", "vgg16"])
@pytest.mark.parametrize("precision", ["tf32", "bf16"])
@pytest.mark.parametrize("name", ["pcnsgd+o", "pcnsgd+r"])
def test_channels_last_trains_alike_and_repeats(name, precision, model):
    chosen = spec(name, model=model, precision=precision, steps=5, lr=0.001, crop=2, channels_last=True)
    found = train(chosen, data=images())
    if model != "vgg16":  # dropout goes by the place in memory
        usual = train(dataclasses.replace(chosen, channels_last=False), data=images())
        np.testing.assert_allclose(found.loss("train"), usual.loss("train"), rtol=1e-2 if precision == "tf32" else 1e-1)
    assert uncaptured(chosen, images()) == []


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compiled", [False, True])
def test_a_run_with_channels_last_survives_a_crash(compiled, tmp_path):
    settings = {"model": "simple_cnn", "channels_last": True, "compile": compiled, "every": True}
    chosen = spec("pcnsgd+o", optimizer_options={"momentum": 0.9}, **settings)
    straight = train(chosen, data=images())

    def die(progress):
        if progress.step > 13 and progress.point is not None:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(chosen, tmp_path, data=images(), checkpoint_seconds=0, report=die)
    assert train(chosen, tmp_path, data=images(), resume=True).differences(straight) == []

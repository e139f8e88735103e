"""Runs through torch.compile: what of a network is compiled, and that it trains as it does without."""

import dataclasses
import shutil

import numpy as np
import pytest
import torch
from torch import nn

from classgrad import models
from classgrad.data import Dataset, Preprocessing, Split
from classgrad.training import RunSpec, train
from classgrad.training import _compiled as module
from classgrad.training._compiled import compiled_between, twin
from classgrad.training._trainer import Trainer


@pytest.fixture
def runs(monkeypatch):
    """The runs of layers that are compiled, without compiling them."""
    found = []
    monkeypatch.setattr(module, "compiled", lambda layers: found.append([type(x).__name__ for x in layers]) or layers)
    return found


def named(name, **options):
    return models.build(name, 2, (3, 32, 32), **options)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("simple_cnn", [["ReLU", "MaxPool2d"], ["Tanh", "AvgPool2d", "Flatten"]]),
        ("vgg16", [["MaxPool2d"]] * 4 + [["MaxPool2d", "AdaptiveAvgPool2d", "Flatten"]]),
        ("resnet18", [["ReLU", "MaxPool2d"], ["AdaptiveAvgPool2d", "Flatten"]]),
        ("mlp", []),
    ],
)
def test_runs_of_plain_layers_are_compiled_and_the_model_stays_as_it_is(name, expected, runs):
    model = named(name).eval()
    before, modules = repr(model), list(model.modules())
    forward = compiled_between(model)
    assert runs == expected
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(forward(x), model(x))
    assert repr(model) == before
    assert list(model.modules()) == modules


class Own(nn.Sequential):
    """A Sequential that may do more than one."""


def test_what_is_hooked_or_may_do_more_runs_as_it_is(runs):
    hooked, replaced = nn.Tanh(), nn.Tanh()
    seen = []
    hooked.register_forward_hook(lambda *_: seen.append("hook"))
    replaced.forward = lambda x: (seen.append("forward"), x)[1]
    model = nn.Sequential(
        nn.Sequential(nn.ReLU(), nn.Sequential(nn.Tanh(), hooked, nn.Sigmoid())),
        nn.Identity(),
        replaced,
        nn.Dropout(0.5),
        Own(nn.ReLU(), nn.Tanh()),
        nn.GELU(),
    )
    forward = compiled_between(model)
    assert runs == [["ReLU", "Tanh"], ["Sigmoid", "Identity"]]
    forward(torch.zeros(1))
    assert seen == ["hook", "forward"]


def test_a_twin_has_the_tensors_but_not_the_hooks():
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    copied = twin(model).eval()
    model[0].register_forward_hook(lambda *_: pytest.fail("this is not the model"))
    pairs = zip((*model.parameters(), *model.buffers()), (*copied.parameters(), *copied.buffers()), strict=True)
    assert all(mine is theirs for mine, theirs in pairs)
    copied(torch.ones(4, 3)).sum().backward()
    assert model[0].weight.grad is not None
    assert model.training


def images():
    generator = torch.Generator().manual_seed(0)
    y = torch.repeat_interleave(torch.arange(2), torch.tensor([20, 8]))
    x = torch.randint(128, (28, 1, 8, 8), dtype=torch.uint8, generator=generator) + 60 * y.view(-1, 1, 1, 1).byte()
    split = Split(x, y, torch.arange(28))
    return Dataset("noise", None, split, split, split, Preprocessing(("a", "b"), (1, 8, 8), (0.3,), (0.2,)), "noise")


def compiling(test):
    """Mark a test that takes a compiler, which has many warnings."""
    needs = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
    return needs(pytest.mark.filterwarnings("ignore")(test))


def spec(name, **changes):
    settings = {"lr": 0.02, "steps": 6, "batch_size": 8, "device": "cpu", "model": "simple_cnn", "grid": "all"}
    return RunSpec("noise", name, **{**settings, "compile": True, "precision": "float64", **changes})


@compiling
@pytest.mark.parametrize(("name", "last"), [("pcnsgd+o", True), ("pcnsgd+r", False), ("sgd", True)])
def test_compiled_networks_train_alike_and_resume_to_the_bit(name, last, tmp_path):
    chosen = spec(name, channels_last=last)
    straight = train(chosen, data=images())
    plain = train(dataclasses.replace(chosen, compile=False), data=images())
    np.testing.assert_allclose(straight.loss("train"), plain.loss("train"), rtol=1e-9)

    def die(progress):
        if progress.step >= 5 and progress.point is not None:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(chosen, tmp_path, data=images(), checkpoint_seconds=0, report=die)
    assert train(chosen, tmp_path, data=images(), resume=True).differences(straight) == []


@compiling
def test_the_class_gradients_of_the_whole_set_come_from_a_network_without_hooks():
    """As on a GPU, where the compiled one is used for them."""
    trainers = [Trainer(spec("pcnsgd+r", compile=way), images(), torch.device("cpu")) for way in (True, False)]
    found = []
    for trainer in trainers:
        counts = [len(indices) for indices in trainer.members]
        trainer._work.refresh(torch.cat(trainer.members), counts)
        found.append(trainer._grads._reference)
        trainer.close()
    for label, units in enumerate(zip(*(reference.values() for reference in found), strict=True)):
        for ours, theirs in zip(*(unit.values() for unit in units), strict=True):
            torch.testing.assert_close(ours, theirs, msg=f"class {label}")

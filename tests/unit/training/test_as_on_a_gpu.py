"""What a GPU does, acted out on the CPU: static tensors, updates within the work, classes one by one, late records."""

import dataclasses
from functools import partial

import numpy as np
import pytest
import torch

from classgrad.data import gaussian_classes
from classgrad.training import ALGORITHMS, RunSpec, _trainer, _work, train
from classgrad.training._trainer import Trainer

DATA = gaussian_classes([300, 40, 9], dimension=5, overlap=0.2, test_per_class=10, seed=1)


class Overwriting:
    """Recordings whose replays overwrite what was returned before, as those of CUDA graphs do.

    Those of other keys work in the same memory, so what they returned is lost as well.
    """

    made = 0

    def __init__(self, generators=(), limit=16):
        self._known = {}

    def __len__(self):
        return len(self._known)

    def busy_seconds(self):
        return 1.0

    def __call__(self, key, function, *inputs):
        if key not in self._known:
            self._known[key] = None
            return function(*inputs)
        for other, returned in self._known.items():
            if other != key:
                _fill(returned)
        before = {p: p.grad for p in _parameters(function)}
        found = function(*(value.clone() for value in inputs))
        if self._known[key] is not None:  # what is done to objects is not replayed, what is done to tensors is
            for p, gradient in before.items():
                p.grad = gradient
        if self._known[key] is None:
            self._known[key] = found
            type(self).made += 1
        return _overwrite(self._known[key], found)


def _parameters(function):
    return function.func.__self__._parameters if isinstance(function, partial) else []


def _overwrite(old, new):
    if isinstance(old, torch.Tensor):
        return old.copy_(new)
    if dataclasses.is_dataclass(old):
        for field in dataclasses.fields(old):
            _overwrite(getattr(old, field.name), getattr(new, field.name))
    elif isinstance(old, (tuple, list)):
        for mine, theirs in zip(old, new, strict=True):
            _overwrite(mine, theirs)
    return old


def _fill(returned):
    if isinstance(returned, torch.Tensor):
        returned.fill_(-77)
    elif dataclasses.is_dataclass(returned):
        _fill([getattr(returned, field.name) for field in dataclasses.fields(returned)])
    elif isinstance(returned, (tuple, list)):
        for part in returned:
            _fill(part)


def spec(name, **changes):
    settings = {"lr": 0.05, "steps": 40, "batch_size": 48, "device": "cpu", "grid": "log:9", "every": True}
    return RunSpec("gaussian", name, **{**settings, **changes})


@pytest.fixture
def acted(monkeypatch):
    monkeypatch.setattr(Trainer, "gpu", property(lambda self: True))
    monkeypatch.setattr(_work, "Recordings", Overwriting)
    monkeypatch.setattr(_trainer, "_LARGE_CLASS", 100)
    Overwriting.made = 0


def agree(found, expected):
    assert found.meta["status"] == expected.meta["status"]
    assert found.series.keys() == expected.series.keys()
    for name in expected.series:
        if not name.startswith(("seconds", "memory")):
            np.testing.assert_allclose(found[name], expected[name], rtol=2e-3, atol=2e-5, err_msg=name)


FUSED = {"fused": True, "momentum": 0.5}


@pytest.mark.parametrize("options", [{}, {"optimizer_options": FUSED}], ids=["outside", "inside"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm(name, options, request):
    expected = train(spec(name, **options), data=DATA)
    request.getfixturevalue("acted")
    agree(train(spec(name, **options), data=DATA), expected)
    assert Overwriting.made > 0


@pytest.mark.parametrize(
    "changes",
    [
        {"schedule": "dominated-decreasing"},
        {"scheduler": "StepLR", "scheduler_options": {"step_size": 7}},
        {"scheduler": "OneCycleLR", "scheduler_options": {"max_lr": 0.1, "total_steps": 50}},
        {"scheduler": "ReduceLROnPlateau", "scheduler_options": {"patience": 1}},
    ],
)
def test_changing_rates(changes, request):
    chosen = spec("pcnsgd+o", optimizer_options=FUSED, **changes)
    expected = train(chosen, data=DATA)
    request.getfixturevalue("acted")
    agree(train(chosen, data=DATA), expected)


@pytest.mark.parametrize("name", ["pcngd", "pcnsgd+o"])
def test_remembered_norms(name, request):
    chosen = spec(name, rule_options={"refresh": 5}, optimizer_options=FUSED)
    expected = train(chosen, data=DATA)
    assert np.isnan(expected["every/norms"]).any()
    request.getfixturevalue("acted")
    agree(train(chosen, data=DATA), expected)
    assert Overwriting.made == 2  # exact steps, and those that go by remembered norms


@pytest.mark.parametrize("chunk", [50, 1000])
@pytest.mark.parametrize("name", ["gd", "pcngd", "bisection", "pcnsgd+r"])
def test_chunks(name, chunk, request):
    expected = train(spec(name), data=DATA)
    request.getfixturevalue("acted")
    agree(train(spec(name, chunk=chunk), data=DATA), expected)


@pytest.mark.parametrize("name", ["sgd", "pcnsgd+r", "pcngd"])
def test_a_crash(name, acted, tmp_path):
    chosen = spec(name, optimizer_options=FUSED)
    straight = train(chosen, data=DATA)

    def die(progress):
        if progress.step > 13 and progress.point is not None:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(chosen, tmp_path, data=DATA, checkpoint_seconds=0, report=die)
    assert train(chosen, tmp_path, data=DATA, resume=True).differences(straight) == []


def test_settings_of_the_machine_are_in_the_record(acted):
    meta = train(spec("sgd"), data=DATA).meta
    assert meta["chunk"] == 4096
    assert meta["seconds_busy"] > 0
    assert meta["seconds_updates"] > 0
    bare = train(spec("sgd", capture=False), data=DATA).meta
    assert "seconds_busy" not in bare
    assert bare["identity"] == meta["identity"]


def test_a_step_that_cannot_be_recorded_is_run_with_one_warning(acted, monkeypatch):
    def refuse(self, key, function, *inputs):
        raise _work.Unrecordable("The step cannot be recorded as a CUDA graph (for a reason).")

    monkeypatch.setattr(Overwriting, "__call__", refuse)
    with pytest.warns(UserWarning, match="for a reason.*run operation by operation instead") as caught:
        found = train(spec("pcnsgd"), data=DATA)
    assert len(caught) == 1
    assert found.meta["status"] == "finished"

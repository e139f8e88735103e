"""Replays of what the kernels do, through Triton's interpreter: the same bits as launched one by one."""

from importlib.util import find_spec
from unittest import mock

import pytest
import torch

if find_spec("triton") is None:
    pytest.skip("needs Triton, which comes with torch's builds for CUDA", allow_module_level=True)

from ..kernels._kernels import DEVICE

from classgrad.gradients import kernels  # isort: skip
from classgrad.gradients._memo import MakeUp  # isort: skip
from classgrad.gradients.terms._scratch import Needs  # isort: skip
from classgrad.gradients.replays._weighing import Weighing  # isort: skip
from ._acted_graphs import Acted, log_launches  # isort: skip
from ..kernels.test_kernels_engine import network  # isort: skip
from ._replayed import MODELS, check, moves  # isort: skip

pytestmark = pytest.mark.skipif(DEVICE != "cpu", reason="on a GPU they are replayed by CUDA graphs")


def images(step):
    return torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(step))


@pytest.fixture(params=["kernels", "rows", "ghosts", "ghosts, weighed by kernels"])
def way(request, monkeypatch):
    """How class gradients of convolutions are made, and whether layer normalization makes its input's gradient too."""
    ghosts = "ghosts" in request.param
    monkeypatch.setattr(kernels, "available", lambda tensor: tensor.dtype == torch.float32)
    monkeypatch.setattr("classgrad.gradients._layout.make_up_of", MakeUp)  # what others found is forgotten
    monkeypatch.setattr("classgrad.gradients.terms._cost._KERNEL_ROWS", 0 if request.param == "kernels" else 10**9)
    monkeypatch.setattr("classgrad.gradients.terms._cost._ROWS_CALLS", 0)
    monkeypatch.setattr("classgrad.gradients.layers._taps._FEW", 0 if ghosts else 10**9)
    for layer in ("_linear", "_conv"):
        monkeypatch.setattr(f"classgrad.gradients.layers.{layer}.ghost_is_cheaper", lambda *_, **__: ghosts)
        monkeypatch.setattr(f"classgrad.gradients.layers.{layer}.kernel_weighs", lambda *_: "weighed" in request.param)
    monkeypatch.setattr("classgrad.gradients.layers._conv.rows_are_cheaper", lambda *_: True)
    log_launches(monkeypatch)
    return request.param


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(("sizes", "small"), [([3, 1, 2], 0), ([2, 2, 2], 2**20)], ids=["all large", "all small"])
def test_replays_are_what_is_launched_one_by_one(sizes, small):
    labels = torch.arange(3).repeat_interleave(torch.tensor(sizes))[[3, 0, 5, 1, 4, 2]]
    with (
        mock.patch.dict(MODELS, {"all kernels": (network, images)}),
        mock.patch("classgrad.gradients.terms._scratch._SMALL", small),
    ):
        recorder = check("all kernels", moves, labels=lambda step: labels.roll(step), count=12, dtype=torch.float32)
    assert recorder.replayed > recorder.made > 0


@pytest.mark.usefixtures("way")
def test_recordings_work_in_memory_whose_place_is_looked_at(monkeypatch):
    """It is the step's, so that it may lie elsewhere the next time."""
    worked_in, looked_at = [], []
    memory, place = Needs.memory, Acted.place

    def watched_memory(needs, like):
        given = memory(needs, like)
        worked_in.extend([] if given is None else [given])  # held, so that nothing else comes to lie there
        return given

    def watched_place(acted, values):
        looked_at.append(values.data_ptr())
        return place(acted, values)

    monkeypatch.setattr(Needs, "memory", watched_memory)
    monkeypatch.setattr(Acted, "place", watched_place)
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    with (
        mock.patch.dict(MODELS, {"all kernels": (network, images)}),
        mock.patch("classgrad.gradients.terms._scratch._SMALL", 0),
    ):
        check("all kernels", labels=lambda step: labels, count=5, dtype=torch.float32)
    assert worked_in
    assert {values.data_ptr() for values in worked_in} <= set(looked_at)


@pytest.fixture
def weighings(monkeypatch):
    """The weighings that were recorded and those that were replayed."""
    seen = {"record": [], "replay": []}
    for name, found in seen.items():
        original = getattr(Weighing, name)

        def watched(weighing, *given, original=original, found=found):
            made = original(weighing, *given)
            found.append(made)
            return made

        monkeypatch.setattr(Weighing, name, watched)
    return seen


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # numpy's, which acts for Triton here
@pytest.mark.parametrize("way", ["ghosts", "ghosts, weighed by kernels"], indirect=True)
def test_sums_that_kernels_make_of_examples_are_replayed(way, weighings):
    """Those of both convolutions and both linear layers, without what a class that is not finite leaves behind."""

    def spoiled(step):
        x = images(step)
        if step in (6, 8):
            x[labels.roll(step) == 1] = torch.inf
        return x

    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    with mock.patch.dict(MODELS, {"spoiled": (network, spoiled)}):
        check("spoiled", labels=lambda step: labels.roll(step), count=12, dtype=torch.float32)
    if "weighed" not in way:
        assert not weighings["record"]
        return
    assert weighings["record"] == [True]
    assert [len(directions) for directions in weighings["replay"]] == [4] * len(weighings["replay"])
    assert len(weighings["replay"]) > 5


@pytest.mark.parametrize("way", ["ghosts, weighed by kernels"], indirect=True)
@pytest.mark.usefixtures("way")
def test_large_sums_are_launched_one_by_one(weighings, monkeypatch):
    monkeypatch.setattr("classgrad.gradients.replays._replays._DIRECTIONS", 4 * 8 * 3 * 9)
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    with mock.patch.dict(MODELS, {"all kernels": (network, images)}):
        recorder = check("all kernels", labels=lambda step: labels, count=6, dtype=torch.float32)
    assert recorder.replayed > recorder.made > 0
    assert not weighings["record"]


@pytest.mark.parametrize("way", ["ghosts, weighed by kernels"], indirect=True)
@pytest.mark.usefixtures("way")
def test_sums_whose_recording_fails_are_launched_one_by_one(weighings, monkeypatch):
    monkeypatch.setattr(Weighing, "record", lambda *_: False)
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    with mock.patch.dict(MODELS, {"all kernels": (network, images)}):
        recorder = check("all kernels", labels=lambda step: labels.roll(step), count=8, dtype=torch.float32)
    assert recorder.replayed > recorder.made > 0
    assert not weighings["replay"]

"""Replays of what the kernels do, through Triton's interpreter: the same bits as launched one by one."""

from importlib.util import find_spec
from unittest import mock

import pytest
import torch

if find_spec("triton") is None:
    pytest.skip("needs Triton, which comes with torch's builds for CUDA", allow_module_level=True)

from ._kernels import DEVICE

from classgrad.gradients import kernels  # isort: skip
from classgrad.gradients._memo import Memo  # isort: skip
from ._acted_graphs import log_launches  # isort: skip
from .test_kernels_engine import network  # isort: skip
from .test_replays import MODELS, check, moves  # isort: skip

pytestmark = pytest.mark.skipif(DEVICE != "cpu", reason="on a GPU they are replayed by CUDA graphs")


def images(step):
    return torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(step))


@pytest.fixture(params=["kernels", "rows", "ghosts"])
def way(request, monkeypatch):
    """How class gradients of convolutions are made, and whether layer normalization makes its input's gradient too."""
    ghosts = request.param == "ghosts"
    monkeypatch.setattr(kernels, "available", lambda tensor: tensor.dtype == torch.float32)
    monkeypatch.setattr("classgrad.gradients._layout.memo_of", lambda sizes: Memo())  # what others found is forgotten
    monkeypatch.setattr("classgrad.gradients._cost._KERNEL_ROWS", 0 if request.param == "kernels" else 10**9)
    monkeypatch.setattr("classgrad.gradients._cost._ROWS_CALLS", 0)
    monkeypatch.setattr("classgrad.gradients._taps._FEW", 0 if ghosts else 10**9)
    for layer in ("_linear", "_conv"):
        monkeypatch.setattr(f"classgrad.gradients.layers.{layer}.ghost_is_cheaper", lambda *_, **__: ghosts)
    monkeypatch.setattr("classgrad.gradients.layers._conv.rows_are_cheaper", lambda *_: True)
    log_launches(monkeypatch)
    return request.param


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(("sizes", "small"), [([3, 1, 2], 0), ([2, 2, 2], 2**20)], ids=["all large", "all small"])
def test_replays_are_what_is_launched_one_by_one(sizes, small):
    labels = torch.arange(3).repeat_interleave(torch.tensor(sizes))[[3, 0, 5, 1, 4, 2]]
    with (
        mock.patch.dict(MODELS, {"all kernels": (network, images)}),
        mock.patch("classgrad.gradients._scratch._SMALL", small),
    ):
        recorder = check("all kernels", moves, labels=lambda step: labels.roll(step), count=15, dtype=torch.float32)
    assert recorder.replayed > recorder.made > 0

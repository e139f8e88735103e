"""The kernels' door, which opens without Triton."""

import subprocess
import sys

import pytest
import torch

from classgrad.gradients import kernels

CUDA = torch.cuda.is_available()


def test_importing_leaves_triton_alone():
    code = "import sys, classgrad.gradients.kernels; print([m for m in sys.modules if m.split('.')[0] == 'triton'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_is_behind():
    assert set(kernels.__all__) == {*kernels._HOMES, "WIDEST", "Weighed", "available", "lies_by_examples"}
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        kernels.nothing  # noqa: B018


def test_available():
    device = "cuda" if CUDA else "cpu"
    assert kernels.available(torch.zeros(3, device=device)) == (CUDA and kernels._usable(0))
    assert not kernels.available(torch.zeros(3, dtype=torch.float64, device=device))


@pytest.mark.parametrize(
    ("setting", "capability", "usable"), [("1", (9, 0), True), ("0", (9, 0), False), ("1", (7, 0), False)]
)
def test_switched_off(setting, capability, usable, monkeypatch):
    monkeypatch.setenv("CLASSGRAD_KERNELS", setting)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(kernels, "find_spec", lambda name: name)
    assert kernels._usable.__wrapped__(0) == usable


@pytest.mark.parametrize("name", sorted(kernels._HOMES))
def test_everything_is_where_the_door_says(name):
    pytest.importorskip("triton", reason="needs Triton, which comes with torch's builds for CUDA")
    from . import _kernels  # noqa: F401  # before any kernel

    assert callable(getattr(kernels, name))

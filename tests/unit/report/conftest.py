from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

SYNTHETIC = Path(__file__).parents[2] / "synthetic_runs.py"


@pytest.fixture(scope="session")
def synthetic():
    """The makers of runs in tests/synthetic_runs.py."""
    return SimpleNamespace(**runpy.run_path(str(SYNTHETIC)))


@pytest.fixture(scope="session")
def pair(synthetic):
    """Two algorithms on two data sets, three seeds: gd drops on the first data set, pcngd does not."""
    return synthetic.demo_runs(algorithms=("gd", "pcngd"), steps=80)


@pytest.fixture(scope="session")
def binary(pair):
    """The runs of ``pair`` on the data set of two classes."""
    return [run for run in pair if len(run.classes) == 2]


@pytest.fixture(scope="session")
def wide(synthetic):
    """Thirty classes, two seeds of one algorithm."""
    return synthetic.wide_runs(classes=30, algorithms=("sgd",), steps=20)

"""Synthetic runs with chosen curves."""

import numpy as np
import pytest

from classgrad.dynamics import Run

EXAMPLES = 100


def confusion_with(recalls, examples=EXAMPLES):
    """Confusion matrices with the given recalls (T, L); every miss goes to the next class."""
    recalls = np.asarray(recalls, dtype=float)
    points, classes = recalls.shape
    confusion = np.zeros((points, classes, classes), dtype=np.int64)
    for c in range(classes):
        hits = np.rint(recalls[:, c] * examples).astype(np.int64)
        confusion[:, c, c] += hits
        confusion[:, c, (c + 1) % classes] += examples - hits
    return confusion


@pytest.fixture
def make_run():
    def make(recalls, losses=None, steps=None, counts=None, examples=EXAMPLES, **meta):
        recalls = np.asarray(recalls, dtype=float)
        points, classes = recalls.shape
        counts = counts or [100 * 10 ** (classes - 1 - c) for c in range(classes)]
        series = {
            "step": np.asarray(steps if steps is not None else range(points), dtype=np.int64),
            "test/confusion": confusion_with(recalls, examples),
        }
        if losses is not None:
            series["train/loss"] = np.asarray(losses, dtype=float)
        return Run({"classes": [f"class {c}" for c in range(classes)], "counts": counts, **meta}, series)

    return make


@pytest.fixture
def full_run():
    """A run of three points and two classes with every documented series."""
    rng = np.random.default_rng(0)
    gradients = rng.normal(size=(3, 2, 5))
    series = {
        "step": np.array([0, 1, 4]),
        "gram": gradients @ gradients.transpose(0, 2, 1),
        "weights": np.ones((3, 2)),
        "measured_change": rng.normal(size=(3, 2)),
        "projection": rng.uniform(size=(3, 2)),
        "noise": rng.uniform(size=(3, 2)),
        "lr": np.array([0.1, 0.1, 0.05]),
        "seconds_per_step": rng.uniform(size=3),
        "memory_bytes": np.array([1, 2, 3]),
        "every/step": np.arange(5),
        "every/norms": rng.uniform(size=(5, 2)),
        "every/seconds": rng.uniform(size=5),
    }
    for split in ("train", "validation", "test"):
        series[f"{split}/confusion"] = rng.integers(1, 9, size=(3, 2, 2))
        series[f"{split}/loss"] = rng.uniform(size=(3, 2))
    meta = {
        "data": "digits-bi20",
        "protocol": "paper",
        "classes": ["cat", "dög"],
        "counts": [20, 1],
        "algorithm": "gd",
        "lr": 0.1,
        "seed": 3,
        "status": "finished",
        "message": "",
        "versions": {"torch": "2.13"},
    }
    return Run(meta, series)

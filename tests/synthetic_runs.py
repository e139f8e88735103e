"""Real runs in a second: softmax regression on Gaussian classes, in numpy, recorded as classgrad records runs.

For tests that need records but no training loop; load it with ``runpy.run_path``.
"""

from __future__ import annotations

import functools
import itertools

import numpy as np

from classgrad.dynamics import Run, log_grid

ALGORITHMS = ("gd", "pcngd", "sgd", "pcnsgd", "pcnsgd+r", "sgd+o", "pcnsgd+o")
FULL_BATCH = ("gd", "pcngd")
SEPARATION = 2.2
INITIAL = 0.12


def demo_runs(seeds=3, algorithms=ALGORITHMS, steps=200):
    """Two data sets, binary and long-tailed, every algorithm."""
    tail = tuple(int(300 * 0.6**k) for k in range(10))
    runs = [run("gauss-bi20", (600, 30), name, seed, steps) for name in algorithms for seed in range(seeds)]
    return runs + [run("gauss-lt10", tail, name, seed, steps) for name in algorithms for seed in range(seeds)]


def wide_runs(classes=100, seeds=2, algorithms=("sgd", "pcnsgd+o"), steps=60):
    """Run one data set of many classes."""
    counts = tuple(max(2, int(60 * 0.96**k)) for k in range(classes))
    kinds = [(name, seed) for name in algorithms for seed in range(seeds)]
    return [run("gauss-wide", counts, name, seed, steps, points=16, lr=0.6, batch_size=200) for name, seed in kinds]


@functools.cache
def run(data, counts, algorithm, seed, steps=200, points=30, lr=0.15, batch_size=42):
    """Train one run and record it."""
    rng = np.random.default_rng(seed)
    dimension = max(8, len(counts) // 2)
    centres = np.random.default_rng(7).normal(size=(len(counts), dimension))
    centres *= SEPARATION / np.linalg.norm(centres, axis=1, keepdims=True)
    splits = {"train": counts, "validation": [30] * len(counts), "test": [60] * len(counts)}
    sets = {name: _draw(np.random.default_rng(k), centres, sizes) for k, (name, sizes) in enumerate(splits.items())}
    weights = INITIAL * rng.normal(size=(dimension + 1, len(counts)))
    series = {name: [] for name in ("gram", "lr", *(f"{s}/{q}" for s in splits for q in ("confusion", "loss")))}
    grid = log_grid(steps, points)
    for step in range(steps + 1):
        if step in grid:
            _measure(series, sets, weights, lr)
        weights = weights - lr * _direction(algorithm, *sets["train"], weights, batch_size, rng)
    meta = {
        "data": data,
        "protocol": "paper",
        "classes": [f"class {k}" for k in range(len(counts))],
        "counts": list(counts),
        "algorithm": algorithm,
        "model": "mlp",
        "optimizer": "sgd",
        "lr": lr,
        "batch_size": None if algorithm in FULL_BATCH else batch_size,
        "steps": steps,
        "seed": seed,
        "device": "cpu",
        "precision": "float64",
        "versions": {"numpy": np.__version__},
        "spec": {"data": data, "algorithm": algorithm, "model": "mlp", "lr": lr, "steps": steps, "seed": seed},
        "status": "finished",
        "message": "",
    }
    arrays = {name: np.stack(values) for name, values in series.items()}
    return Run(meta, {"step": np.array(grid, dtype=np.int64), **arrays})


def changed(run, series=None, **meta):
    """Copy a run with other settings, and with series replaced or, where None, left out."""
    arrays = {**run.series, **(series or {})}
    return Run({**run.meta, **meta}, {name: values for name, values in arrays.items() if values is not None})


def cut(run, points, status="interrupted", message="stopped by Ctrl-C"):
    """Keep the first measuring points of a run."""
    return changed(run, {name: values[:points] for name, values in run.series.items()}, status=status, message=message)


def _draw(rng, centres, sizes):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    inputs = centres[labels] + rng.normal(size=(len(labels), centres.shape[1]))
    return np.hstack([inputs, np.ones((len(labels), 1))]), labels


def _class_gradients(inputs, labels, weights):
    """Class gradients, shape (classes, inputs, classes); labels are sorted."""
    errors = _errors(inputs, labels, weights)
    starts = np.searchsorted(labels, np.arange(weights.shape[1] + 1))
    return np.stack([inputs[a:b].T @ errors[a:b] for a, b in itertools.pairwise(starts)]) / len(labels)


def _errors(inputs, labels, weights):
    errors = _probabilities(inputs, weights)
    errors[np.arange(len(labels)), labels] -= 1
    return errors


def _probabilities(inputs, weights):
    scores = inputs @ weights
    scores = np.exp(scores - scores.max(1, keepdims=True))
    return scores / scores.sum(1, keepdims=True)


def _direction(algorithm, inputs, labels, weights, batch_size, rng):
    chosen = _batch(algorithm, labels, weights.shape[1], batch_size, rng)
    batch = inputs[chosen], labels[chosen]
    if "pcn" not in algorithm:
        return batch[0].T @ _errors(*batch, weights) / len(chosen)
    units = _units(_class_gradients(*batch, weights))
    if not algorithm.endswith("+r"):
        return units.sum(0)
    along = (units * _units(_class_gradients(inputs, labels, weights))).sum((1, 2), keepdims=True)
    return (units / along.clip(0.2)).sum(0)


def _units(gradients):
    return gradients / np.linalg.norm(gradients, axis=(1, 2), keepdims=True).clip(1e-12)


def _batch(algorithm, labels, classes, batch_size, rng):
    if algorithm in FULL_BATCH:
        return np.arange(len(labels))
    if algorithm == "sgd":
        return np.sort(rng.choice(len(labels), batch_size, replace=False))
    shares = np.full(classes, 1 / classes) if algorithm.endswith("+o") else np.bincount(labels) / len(labels)
    sizes = np.maximum(1, np.rint(batch_size * shares)).astype(int)
    starts = np.searchsorted(labels, np.arange(classes + 1))
    return np.concatenate([rng.integers(starts[k], starts[k + 1], sizes[k]) for k in range(classes)])


def _measure(series, sets, weights, lr):
    classes = weights.shape[1]
    for name, (inputs, labels) in sets.items():
        probabilities = _probabilities(inputs, weights)
        pairs = labels * classes + probabilities.argmax(1)
        series[f"{name}/confusion"].append(np.bincount(pairs, minlength=classes**2).reshape(classes, classes))
        losses = -np.log(probabilities[np.arange(len(labels)), labels])
        series[f"{name}/loss"].append(np.bincount(labels, losses) / np.bincount(labels))
    flat = _class_gradients(*sets["train"], weights).reshape(classes, -1)
    series["gram"].append(flat @ flat.T)
    series["lr"].append(lr)

"""The paper's findings, with margins, over five seeds on two problems: digits 20:1 and Gaussian classes 60:1.

All algorithms are trained alike, at one learning rate.
"""

import functools

import numpy as np
import pytest

from classgrad.data import gaussian_classes, load
from classgrad.dynamics import detect_mid, hitting_time
from classgrad.training import RunSpec, train

SEEDS = range(5)
R_STAR = 0.7
PROBLEMS = {
    "digits-bi20": {"lr": 0.1, "batch_size": 64, "model_options": {"hidden": [64]}},
    "gaussian-60": {"lr": 0.05, "batch_size": 61, "model_options": {"hidden": [16]}},
}


@functools.cache
def data_of(problem):
    if problem == "gaussian-60":
        return gaussian_classes([1200, 20], dimension=20, overlap=0.05, test_per_class=200)
    return load(problem)


@functools.cache
def runs_of(problem, algorithm):
    return [
        train(
            RunSpec(
                problem,
                algorithm,
                steps=120,
                seed=seed,
                grid="log:22",
                gradients=False,
                device="cpu",
                **PROBLEMS[problem],
            ),
            data=data_of(problem),
        )
        for seed in SEEDS
    ]


def drops(problem, algorithm):
    """In how many of the five runs the minority initial drop is seen."""
    return sum(detect_mid(run).verdict for run in runs_of(problem, algorithm))


def minority(problem, algorithm):
    """Recall of the minority, averaged over the measuring points (log-spaced steps) and the seeds."""
    return float(np.mean([run.minority_recall("test").mean() for run in runs_of(problem, algorithm)]))


def times(problem, algorithm):
    """First measured step with a macro recall of R*, for every seed; nan where it never comes."""
    found = hitting_time(runs_of(problem, algorithm), R_STAR, lambda run: run.macro_recall("test"))
    return np.array([np.nan if time is None else time for time in found.times])


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("algorithm", ["gd", "sgd"])
def test_plain_training_shows_the_minority_initial_drop(problem, algorithm):
    assert drops(problem, algorithm) == 5
    lowest = [run.minority_recall("test").min() for run in runs_of(problem, algorithm)]
    assert np.mean(lowest) < 0.05


@pytest.mark.parametrize("problem", PROBLEMS)
def test_per_class_normalization_of_the_full_gradient_does_not(problem):
    assert drops(problem, "pcngd") == 0
    assert minority(problem, "pcngd") > minority(problem, "gd") + 0.4


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("cure", ["pcnsgd+r", "sgd+o", "pcnsgd+o"])
def test_pcnsgd_alone_delays_the_minority_and_its_cures_do_not(problem, cure):
    assert drops(problem, cure) == 0
    assert minority(problem, cure) > minority(problem, "pcnsgd") + 0.12
    assert minority(problem, cure) > minority(problem, "pcngd") - 0.05


@pytest.mark.parametrize("problem", PROBLEMS)
def test_pcngd_reaches_the_target_several_times_sooner_than_gd(problem):
    plain, normalized = times(problem, "gd"), times(problem, "pcngd")
    learnt = normalized > 0  # a network may start there by luck
    assert learnt.sum() >= 4
    assert np.isfinite(normalized).all()
    ratio = np.where(np.isnan(plain), 120, plain)[learnt] / normalized[learnt]
    assert np.median(ratio) > 6
    assert ratio.min() > 3

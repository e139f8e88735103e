"""The theory on recorded runs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from classgrad.dynamics import Run
from classgrad.theory import Examples, Trajectory, analyze_run, descend, logistic
from classgrad.theory._conditions import rule_weights


def record(problem: Examples, path: Trajectory, algorithm: str, **more) -> Run:
    """A run as the training loop records it at every step; the last point has no step after it."""
    gram = torch.cat([path.gram, path.gram[-1:]])  # the theory looks at no Gram matrix after the last step but the end
    counts = problem.counts
    lr = torch.cat([path.lr, torch.tensor([torch.nan])])
    weights = rule_weights(gram, "pcngd" if "pcn" in algorithm else "gd")
    change = torch.cat([path.losses.diff(dim=0), torch.full((1, len(counts)), torch.nan)])
    series = {
        "step": torch.arange(len(path.losses)),
        "gram": gram,
        "lr": lr,
        "weights": weights,
        "train/loss": path.losses * counts.sum() / counts,
        "measured_change": change,
        **more,
    }
    meta = {"classes": ["many", "few"], "counts": counts.tolist(), "algorithm": algorithm}
    return Run(
        meta, {name: np.ascontiguousarray(values.numpy()) for name, values in series.items() if values is not None}
    )


PROBLEM = logistic()
PATHS = {"gd": descend(PROBLEM, "gd", 60, 0.1), "pcngd": descend(PROBLEM, "pcngd", 60, 0.02)}


@pytest.mark.parametrize("algorithm", ["gd", "pcngd"])
def test_predictions_and_bounds_of_a_full_record(algorithm):
    found = analyze_run(record(PROBLEM, PATHS[algorithm], algorithm))
    assert found.why_no_bounds == ""
    exact = PROBLEM.constants.smoothness.value
    assert (found.constants.smoothness.value <= exact).all()
    assert (found.constants.smoothness.value > 0.2 * exact).all()
    assert found.constants.estimated == ("L_2", "f_*")
    for bound in found.bounds:
        assert not bound.violated.any()
        assert bound.estimated == ("L_2", "f_*")
    torch.testing.assert_close(found.measured[:-1], PATHS[algorithm].losses.diff(dim=0))
    assert found.measured[-1].isnan().all()


def test_the_drop_is_predicted_and_seen():
    found = analyze_run(record(PROBLEM, PATHS["gd"], "gd"))
    assert found.predicted_worse[0].tolist() == [False, True]
    assert found.got_worse[0].tolist() == [False, True]
    assert found.margin[0, 1] < 0 < found.margin[0, 0]
    assert found.limit[0] == 0
    agree = (found.predicted_worse == found.got_worse)[:-1].double().mean()
    assert agree > 0.9
    assert not analyze_run(record(PROBLEM, PATHS["pcngd"], "pcngd")).got_worse[:20].any()


def test_the_limit_is_a_step_that_works():
    found = analyze_run(record(PROBLEM, PATHS["pcngd"], "pcngd"))
    assert (found.limit[:-1] > 0).all()
    worked = found.limit[:-1] > 0.02  # where the step made was below the limit
    assert worked.any()
    assert (found.measured[:-1][worked] < 0).all()


def test_sparse_records_have_conditions_but_no_bounds():
    full = record(PROBLEM, PATHS["gd"], "gd")
    points = [0, 1, 2, 10, 60]
    sparse = Run(full.meta, {name: values[points] for name, values in full.series.items() if name != "measured_change"})
    found = analyze_run(sparse)
    assert "5 of 61" in found.why_no_bounds
    assert found.bounds == ()
    torch.testing.assert_close(found.measured[:2], PATHS["gd"].losses.diff(dim=0)[:2])
    assert found.measured[2:].isnan().all()


def test_steps_of_another_optimizer_have_no_bounds():
    twice = 2 * PATHS["gd"].losses.diff(dim=0)
    other = torch.cat([twice, twice[-1:]])
    found = analyze_run(record(PROBLEM, PATHS["gd"], "gd", predicted_change=other))
    assert "plain full-batch steps" in found.why_no_bounds
    assert found.constants.smoothness.value.isnan().all()
    assert found.predicted is not None
    torch.testing.assert_close(found.predicted, other)


@pytest.mark.parametrize("algorithm", ["gd", "pcngd", "bisection"])
def test_weights_of_another_rule_have_no_bounds(algorithm):
    """As those of a PCN with a large eps, or of remembered norms, or of bisection: no theorem speaks of them."""
    path = PATHS["gd" if algorithm == "gd" else "pcngd"]
    gram = torch.cat([path.gram, path.gram[-1:]])
    other = 1 / (1 / rule_weights(gram, "pcngd") + 5.0)
    found = analyze_run(record(PROBLEM, path, algorithm, weights=other))
    assert "plain full-batch steps" in found.why_no_bounds
    assert found.bounds == ()


def test_records_without_weights_take_those_of_the_algorithm():
    with_weights, without = (
        analyze_run(record(PROBLEM, PATHS["pcngd"], "pcngd", **more)) for more in ({}, {"weights": None})
    )
    torch.testing.assert_close(with_weights.predicted, without.predicted, equal_nan=True)

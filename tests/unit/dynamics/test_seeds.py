import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from classgrad._errors import InputError
from classgrad.dynamics import Estimate, estimate, hitting_time, mean_curve, peak

STEPS = [0, 10, 100, 1000]


@pytest.fixture
def make_runs(make_run):
    """Runs of two classes whose macro recall follows the given curves."""

    def make(*curves, steps=STEPS):
        return [
            make_run([[value, value] for value in curve], steps=steps, seed=seed) for seed, curve in enumerate(curves)
        ]

    return make


def test_estimate_is_mean_and_standard_error():
    values = [0.1, 0.5, 0.9, 0.2]
    found = estimate(values)
    assert (found.mean, found.n) == (pytest.approx(np.mean(values)), 4)
    assert found.error == pytest.approx(stats.sem(values))


def test_estimates_of_one_and_of_none():
    assert estimate([0.3]).mean == 0.3
    assert math.isnan(estimate([0.3]).error)
    assert math.isnan(estimate([]).mean)
    assert estimate([0.3]).to_json() == {"mean": 0.3, "error": None, "n": 1}


def test_mean_curve_over_the_common_grid(make_runs):
    runs = make_runs([0.1, 0.2, 0.3, 0.4], [0.3, 0.4, 0.5, 0.6])
    runs += make_runs([0.5, 0.6, 0.7], steps=[0, 100, 500])
    runs[2] = replace(runs[2], meta={**runs[2].meta, "seed": 2})
    curve = mean_curve(runs, lambda run: run.macro_recall("test"))
    assert curve.steps.tolist() == [0, 100]
    assert curve.n == 3
    np.testing.assert_allclose(curve.mean, [0.3, (0.3 + 0.5 + 0.6) / 3])
    np.testing.assert_allclose(curve.error, stats.sem([[0.1, 0.3], [0.3, 0.5], [0.5, 0.6]]))


def test_mean_curve_of_anything_measured(make_runs):
    runs = make_runs([0.1, 0.2, 0.3, 0.4], [0.3, 0.4, 0.5, 0.6])
    assert mean_curve(runs, lambda run: run.recall("test")).mean.shape == (4, 2)
    assert mean_curve(runs, lambda run: run.confusion("test")).error.shape == (4, 2, 2)


def test_mean_curve_of_one_run_has_no_error(make_runs):
    curve = mean_curve(make_runs([0.1, 0.2, 0.3, 0.4]), lambda run: run.macro_recall("test"))
    assert np.isnan(curve.error).all()


def test_runs_without_a_common_step_are_refused(make_run):
    runs = [make_run([[0.5, 0.5]], steps=[step], seed=step) for step in (0, 1)]
    with pytest.raises(InputError, match="`runs` should share measuring points"):
        mean_curve(runs, lambda run: run.macro_recall("test"))


def test_tau_is_the_first_measured_step_at_the_threshold(make_runs):
    tau = hitting_time(make_runs([0.5, 0.6, 0.7, 0.9], [0.5, 0.8, 0.6, 0.9], [0.7, 0.5, 0.5, 0.5]), 0.7)
    assert tau.times == (100, 10, 0)
    assert tau.value == pytest.approx(110 / 3)
    assert tau.reached == 3
    assert tau.median == 10


def test_tau_by_both_error_rules(make_runs):
    runs = make_runs([0.5, 0.6, 0.7, 0.9], [0.5, 0.8, 0.6, 0.9])
    standard_error = stats.sem([100, 10])
    interval = (90 + 10) / 2
    assert standard_error < interval
    assert hitting_time(runs, 0.7).error == pytest.approx(standard_error)
    assert hitting_time(runs, 0.7, error="max").error == pytest.approx(interval)
    same = make_runs([0.5, 0.6, 0.7, 0.9], [0.5, 0.6, 0.7, 0.9])
    assert hitting_time(same, 0.7).error == 0.0
    assert hitting_time(same, 0.7, error="max").error == 90.0


@pytest.mark.parametrize("error", ["paper", "max"])
def test_tau_of_one_run_is_known_to_the_measuring_interval(make_runs, error):
    tau = hitting_time(make_runs([0.5, 0.6, 0.7, 0.9]), 0.7, error=error)
    assert (tau.value, tau.error) == (100.0, 90.0)
    assert hitting_time(make_runs([0.9, 0.9, 0.9, 0.9]), 0.7, error=error).error == 0.0


def test_a_seed_that_never_gets_there_makes_the_mean_infinite(make_runs):
    tau = hitting_time(make_runs([0.5, 0.7, 0.7, 0.7], [0.5] * 4, [0.7] * 4), 0.7)
    assert tau.times == (10, None, 0)
    assert tau.reached == 2
    assert tau.value == math.inf
    assert math.isnan(tau.error)
    assert tau.median == 10
    assert tau.to_json() == {"threshold": 0.7, "times": [10, None, 0], "value": None, "error": None}


def test_the_median_is_infinite_where_half_of_the_seeds_never_get_there(make_runs):
    assert hitting_time(make_runs([0.9] * 4, [0.5] * 4), 0.7).median == math.inf
    assert hitting_time(make_runs([0.9] * 4, [0.5, 0.9, 0.9, 0.9]), 0.7).median == 5.0


def test_tau_of_a_single_class(make_run):
    run = make_run([[0.9, 0.1], [0.9, 0.5], [0.9, 0.8]], steps=[0, 5, 20])
    assert hitting_time([run], 0.7, lambda run: run.recall("test")[:, 1]).value == 20


def test_undefined_recall_reaches_nothing(make_run):
    run = make_run([[0.5, 0.5]], steps=[0])
    run.series["test/confusion"][:] = 0
    assert hitting_time([run], 0.1).times == (None,)


def test_unknown_error_rules_are_refused(make_runs):
    with pytest.raises(InputError, match="`error` should be one of paper, max"):
        hitting_time(make_runs([0.5] * 4), 0.7, error="mean")


def test_peak_is_the_first_of_the_highest(make_runs):
    assert peak(make_runs([0.5, 0.9, 0.7, 0.9])[0]) == 1


def test_peak_chosen_by_another_split(make_runs, make_run):
    run = make_runs([0.5, 0.9, 0.7, 0.9])[0]
    other = make_run([[v, v] for v in (0.5, 0.6, 0.8, 0.7)])
    run.series["validation/confusion"] = other.series["test/confusion"]
    assert peak(run, select="validation") == 2


def test_an_empty_split_has_no_peak(make_runs):
    run = make_runs([0.5] * 4)[0]
    run.series["test/confusion"][:] = 0
    with pytest.raises(InputError, match=r"`split` should be one with examples\. Found none in 'test'"):
        peak(run)


def test_no_runs_are_refused():
    with pytest.raises(InputError, match="`runs` should hold at least one run"):
        hitting_time([], 0.7)


def test_runs_of_different_experiments_are_refused(make_run):
    runs = [make_run([[0.5, 0.5]], algorithm=name) for name in ("gd", "pcngd")]
    with pytest.raises(InputError, match=r"seeds of one experiment\. Found 'algorithm' both 'gd' and 'pcngd'"):
        mean_curve(runs, lambda run: run.macro_recall("test"))


def test_one_seed_twice_is_refused(make_run):
    runs = [make_run([[0.5, 0.5]], seed=seed) for seed in (4, 7, 4)]
    with pytest.raises(InputError, match=r"each seed once\. Found seed 4 more than once"):
        mean_curve(runs, lambda run: run.macro_recall("test"))


def test_runs_without_a_seed_may_be_several(make_run):
    runs = [make_run([[0.5, 0.5]]) for _ in range(2)]
    assert mean_curve(runs, lambda run: run.macro_recall("test")).n == 2
    assert isinstance(estimate([1.0, 2.0]), Estimate)

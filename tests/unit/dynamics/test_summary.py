import json
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from classgrad._errors import InputError
from classgrad.dynamics import Run, default_threshold, detect_mid, summarize

STEPS = [0, 1, 3, 7, 15, 31]


@pytest.fixture
def seeds(make_run):
    dropping = [[0.5, 0.5], [1.0, 0.0], [1.0, 0.0], [1.0, 0.2], [1.0, 0.6], [0.9, 0.5]]
    steady = [[0.5, 0.5], [0.6, 0.6], [0.7, 0.7], [0.8, 0.8], [0.8, 0.8], [0.9, 0.9]]
    undecided = [[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [1.0, 0.1], [0.9, 0.2], [0.9, 0.4]]
    curves = enumerate((dropping, steady, undecided))
    status = {2: "diverged"}
    return [
        make_run(curve, steps=STEPS, seed=seed, algorithm="gd", status=status.get(seed, "finished"))
        for seed, curve in curves
    ]


def test_the_numbers_of_three_seeds(seeds):
    summary = summarize(seeds)
    assert summary.peak.mean == pytest.approx((0.8 + 0.9 + 0.65) / 3)
    assert summary.peak.error == pytest.approx(stats.sem([0.8, 0.9, 0.65]))
    assert summary.peak_step.mean == pytest.approx((15 + 31 + 31) / 3)
    assert summary.final.mean == pytest.approx((0.7 + 0.9 + 0.65) / 3)
    assert summary.minority_at_peak.mean == pytest.approx((0.6 + 0.9 + 0.4) / 3)
    assert summary.minority_final.mean == pytest.approx((0.5 + 0.9 + 0.4) / 3)
    assert summary.tau.times == (15, 3, None)
    assert summary.tau.threshold == 0.7
    assert summary.statuses == {"finished": 2, "diverged": 1}
    assert summary.seeds == (0, 1, 2)
    assert summary.settings["algorithm"] == "gd"


def test_the_drop_is_counted_over_the_runs_that_can_be_judged(seeds):
    summary = summarize(seeds)
    assert summary.mid_fraction == 0.5
    assert summary.mid_depth.mean == 0.25
    assert summary.mid_relative_depth.mean == 0.5
    assert summary.mid_depth.n == 2


def test_points_of_recall_and_of_probability_are_not_averaged(seeds):
    """A run whose recall starts at zero is judged by its loss, and its depth is one of probabilities."""
    confusion = seeds[0]["test/confusion"].copy()
    confusion[0, 1] = [confusion[0, 1].sum(), 0]  # not one of the minority right at the beginning
    loss = np.full((len(confusion), 2), 3.0)
    loss[0] = 0.5
    series = {name: seeds[0][name] for name in ("step", "train/loss") if name in seeds[0]}
    low = Run({**seeds[0].meta, "seed": 7}, {**series, "test/confusion": confusion, "train/loss": loss})
    assert detect_mid(low).basis == "loss"
    alone, mixed = summarize(seeds[:1]), summarize([low, seeds[0]])
    assert mixed.mid_depth.mean == alone.mid_depth.mean > 0
    assert summarize([low]).mid_depth.mean == pytest.approx(np.exp(-0.5) - np.exp(-3.0), abs=0.2)


def test_no_run_can_be_judged(seeds):
    summary = summarize(seeds[2:])
    assert math.isnan(summary.mid_fraction)
    assert summary.mid_depth.n == 0
    assert summary.to_json()["mid_fraction"] is None


def test_choices(seeds):
    summary = summarize(seeds[:2], threshold=0.8, error="max")
    assert summary.tau.times == (15, 7)
    assert summary.tau.error == pytest.approx(6.0)
    for run in seeds:
        run.series["validation/confusion"] = run.series["test/confusion"][::-1].copy()
        run.series["train/confusion"] = run.series["test/confusion"]
    assert summarize(seeds, select="validation").peak_step.mean == pytest.approx((1 + 0 + 0) / 3)
    assert summarize(seeds, split="train").peak.mean == summarize(seeds).peak.mean


def test_json_is_plain(seeds):
    plain = summarize(seeds).to_json()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert plain["tau"]["value"] is None
    assert plain["peak"]["n"] == 3


def test_balanced_data_have_no_minority_and_no_drop(make_run):
    summary = summarize([make_run(np.full((3, 2), 0.5), counts=[5, 5])])
    assert summary.mid_fraction == 0.0
    assert math.isnan(summary.minority_final.mean)


def test_the_depth_is_that_of_the_runs_that_dropped(seeds):
    """One seed judged by recall that did not drop does not stand for two that did, judged by their losses."""
    confusion = seeds[0]["test/confusion"].copy()
    confusion[0, 1] = [confusion[0, 1].sum(), 0]
    loss = np.full((len(confusion), 2), 3.0)
    loss[0] = 0.5
    series = {"step": seeds[0]["step"], "test/confusion": confusion, "train/loss": loss}
    low = [Run({**seeds[0].meta, "seed": seed}, series) for seed in (7, 8)]
    calm = seeds[1]
    assert not detect_mid(calm).verdict
    found = summarize([calm, *low])
    assert found.mid_fraction == pytest.approx(2 / 3)
    assert found.mid_depth.mean == summarize(low).mid_depth.mean > 0.3


@pytest.mark.parametrize("classes", range(2, 40))
def test_recall_at_the_threshold_reaches_it(classes):
    exact = Fraction(1, classes) + Fraction(2, 5) * (1 - Fraction(1, classes))
    assert default_threshold(classes) <= float(exact) < default_threshold(classes) + 1e-11


@pytest.mark.parametrize(("classes", "threshold"), [(2, 0.7), (10, 0.46), (100, 0.406)])
def test_the_default_threshold(classes, threshold):
    assert default_threshold(classes) == threshold


def test_no_runs_are_refused():
    with pytest.raises(InputError, match="`runs` should hold at least one run"):
        summarize([])

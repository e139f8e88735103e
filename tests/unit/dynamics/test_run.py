from dataclasses import replace

import numpy as np
import pytest
import torch

from classgrad import dynamics
from classgrad._errors import InputError
from classgrad.dynamics import Run


def test_reading_what_is_stored(full_run):
    assert full_run.steps.tolist() == [0, 1, 4]
    assert full_run.classes == ("cat", "dög")
    assert full_run.counts.tolist() == [20, 1]
    assert full_run.splits == ("train", "validation", "test")
    assert full_run.loss("train") is full_run["train/loss"]
    assert full_run.confusion("test") is full_run["test/confusion"]
    assert "projection" in full_run
    assert "train/recall" not in full_run


def test_every_step_series_have_their_own_axis(full_run):
    steps, norms = full_run.every("norms")
    assert steps.tolist() == [0, 1, 2, 3, 4]
    assert norms is full_run["every/norms"]


@pytest.mark.parametrize("name", ["recall", "precision", "f1", "macro_recall"])
def test_metrics_are_derived_from_the_confusion_matrices(full_run, name):
    expected = getattr(dynamics, name)(torch.from_numpy(full_run["test/confusion"])).numpy()
    np.testing.assert_array_equal(getattr(full_run, name)("test"), expected)


GRAM_READERS = {
    "norms": dynamics.class_norms,
    "cosines": dynamics.class_cosines,
    "imbalance_ratio": dynamics.imbalance_ratio,
    "cos_alpha": dynamics.cos_alpha,
    "condition": dynamics.condition,
    "omega": dynamics.omega,
    "unit_imbalance_ratio": lambda gram: dynamics.imbalance_ratio(dynamics.unit_gram(gram)),
    "unit_condition": lambda gram: dynamics.condition(dynamics.unit_gram(gram)),
}


@pytest.mark.parametrize("name", GRAM_READERS)
def test_gradient_quantities_are_derived_from_the_gram_matrix(full_run, name):
    expected = GRAM_READERS[name](torch.from_numpy(full_run["gram"])).numpy()
    np.testing.assert_array_equal(getattr(full_run, name), expected)


def test_predicted_change_is_derived_unless_the_run_stored_its_own(full_run):
    expected = -full_run["lr"][:, None] * full_run["gram"].sum(-1)
    np.testing.assert_allclose(full_run.predicted_change, expected)
    own = np.ones((3, 2))
    stored = replace(full_run, series={**full_run.series, "predicted_change": own})
    assert stored.predicted_change is own


def test_objectives_weigh_mean_losses_by_the_share_of_the_class(full_run):
    np.testing.assert_allclose(full_run.objectives, full_run.loss("train") * np.array([20 / 21, 1 / 21]))


def test_minority_classes_have_some_but_fewer_examples_than_average(make_run):
    assert make_run([[0.5] * 4], counts=[90, 30, 29, 0]).minority.tolist() == [False, True, True, False]
    assert make_run([[0.5] * 2], counts=[10, 10]).minority.tolist() == [False, False]


def test_minority_recall_is_the_mean_of_those_classes(make_run):
    run = make_run([[1.0, 0.2, 0.4], [0.0, 0.6, 0.8]], counts=[100, 10, 10])
    np.testing.assert_allclose(run.minority_recall("test"), [0.3, 0.7])
    assert np.isnan(make_run([[1.0, 0.2]], counts=[5, 5]).minority_recall("test")).all()


def test_minority_recall_leaves_out_classes_the_split_lacks(make_run):
    run = make_run([[1.0, 0.2, 0.4]], counts=[100, 10, 10])
    run.series["test/confusion"][:, 2, :] = 0
    np.testing.assert_allclose(run.minority_recall("test"), [0.2])


def test_read_only_and_reversed_arrays_can_be_read(full_run):
    gram = full_run["gram"].copy()
    gram.flags.writeable = False
    frozen = replace(full_run, series={**full_run.series, "gram": gram, "lr": full_run["lr"][::-1]})
    np.testing.assert_array_equal(frozen.norms, full_run.norms)
    assert frozen.predicted_change.shape == (3, 2)


def test_a_series_that_was_not_measured_is_named_with_those_that_were(make_run):
    with pytest.raises(InputError, match=r"'gram' should have been measured in this run. Found step, test/confusion"):
        _ = make_run([[0.5, 0.5]]).norms


def test_settings_leave_out_what_differs_between_seeds(full_run):
    other = replace(full_run, meta={**full_run.meta, "seed": 4, "message": "x", "versions": {}})
    assert other.settings == full_run.settings
    assert full_run.settings["algorithm"] == "gd"
    assert full_run.settings["model"] is None


def test_a_run_is_identical_to_its_copy_whatever_the_clock_said(full_run):
    series = {name: values.copy() for name, values in full_run.series.items()}
    series["seconds_per_step"] *= 2
    series["memory_bytes"] += 1
    del series["every/seconds"]
    other = Run({**full_run.meta, "seconds_total": 12.5}, series)
    assert full_run.identical(other)
    assert other.differences(full_run) == []


def test_nan_is_identical_to_nan_but_minus_zero_is_not_zero(full_run):
    def with_noise(value):
        return replace(full_run, series={**full_run.series, "noise": np.full((3, 2), value)})

    assert with_noise(np.nan).identical(with_noise(np.nan))
    assert not with_noise(0.0).identical(with_noise(-0.0))


def test_differences_are_named(full_run):
    series = {name: values.copy() for name, values in full_run.series.items()}
    series["train/loss"][1, 1] = np.nextafter(series["train/loss"][1, 1], 2)
    series["test/confusion"] = series["test/confusion"].astype(float)
    series["noise"] = series["noise"][:, :1].repeat(2, axis=1)
    del series["projection"]
    meta = {**full_run.meta, "seed": 4}
    del meta["message"]
    expected = ["meta 'message'", "meta 'seed'"]
    expected += [f"series {name!r}" for name in ("noise", "projection", "test/confusion", "train/loss")]
    assert full_run.differences(Run(meta, series)) == expected
    assert not full_run.identical(Run(meta, series))


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ({"classes": None}, "names of the classes under 'classes'"),
        ({"classes": []}, "names of the classes under 'classes'"),
        ({"classes": [1, 2]}, "names of the classes under 'classes'"),
        ({"counts": None}, "examples of each of 2 classes under 'counts'"),
        ({"counts": [1]}, "examples of each of 2 classes under 'counts'"),
        ({"counts": [1, -1]}, "whole numbers from 0 on under 'counts'"),
        ({"counts": [1, 1.5]}, "whole numbers from 0 on under 'counts'"),
        ({"status": "fine"}, "one of finished, diverged, interrupted under 'status'. Found 'fine'"),
    ],
)
def test_settings_that_cannot_be_are_refused(full_run, meta, message):
    with pytest.raises(InputError, match=message):
        replace(full_run, meta={**full_run.meta, **meta})


@pytest.mark.parametrize(
    ("series", "message"),
    [
        ({"step": np.array([0, 1, 1])}, "'step' should rise from 0 on"),
        ({"step": np.array([-1, 0, 1])}, "'step' should rise from 0 on"),
        ({"step": np.array([0.0, 1.0, 2.0])}, "'step' should be one row of int64 steps, .*Found float64"),
        ({"step": np.zeros((0,), dtype=np.int64)}, "'step' should be one row of int64 steps"),
        ({"step": np.array([0, 1])}, "should be float64 or int64 with 2 rows, as 'step' has"),
        ({"lr": np.array(0.1)}, "'lr' should be float64 or int64 with 3 rows"),
        ({"lr": np.ones(3, dtype=np.float32)}, "'lr' should be float64 or int64 .*Found float32"),
        ({"gram": np.ones((3, 2, 3))}, r"'gram' should have shape \(points, 2, 2\) for 2 classes"),
        ({"train/loss": np.ones((3, 1))}, r"'train/loss' should have shape \(points, 2\)"),
        ({"every/norms": np.ones((3, 2))}, "'every/norms' should be .* with 5 rows, as 'every/step' has"),
    ],
)
def test_series_that_do_not_fit_are_refused(full_run, series, message):
    with pytest.raises(InputError, match=message):
        replace(full_run, series={**full_run.series, **series})


def test_every_series_need_their_steps(full_run):
    series = {name: values for name, values in full_run.series.items() if name != "every/step"}
    with pytest.raises(InputError, match=r"'every/step' should be one row of int64 steps.* Found nothing"):
        replace(full_run, series=series)


def test_a_run_describes_itself_in_one_line(full_run, make_run):
    assert repr(full_run) == (
        "Run(data='digits-bi20', algorithm='gd', seed=3, status='finished', points=3, last_step=4)"
    )
    assert repr(make_run([[0.5, 0.5]])) == "Run(points=1, last_step=0)"

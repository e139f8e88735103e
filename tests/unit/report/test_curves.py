from __future__ import annotations

import numpy as np
import pytest

from classgrad.report._curves import MANY, QUANTITIES, class_means, curves_of, lines_of, overview_of, step_ticks
from classgrad.report._experiments import problems

RECALL, LOSS, NORM, RATIO, ANGLE = QUANTITIES


def first(runs):
    problem = problems(runs)[0]
    return problem, problem.experiments[0], lines_of(problem)


def test_few_classes_have_a_line_each_from_majority_to_minority(synthetic, binary):
    problem, _, lines = first([synthetic.changed(binary[0], counts=[30, 1600])])
    assert [line.label for line in lines] == ["class 1 (n = 1,600)", "class 0 (n = 30)"]
    assert [line.classes.tolist() for line in lines] == [[1], [0]]
    assert problem.classes == [line.name for line in lines]


def test_many_classes_are_drawn_as_three_groups_by_size(wide):
    problem, _, lines = first(wide)
    assert len(problem.order) > MANY
    assert [len(line.classes) for line in lines] == [10, 10, 10]
    counts = problem.counts
    assert lines[0].label == f"10 largest classes (n = {counts[9]} to {counts[0]})"
    assert np.concatenate([line.classes for line in lines]).tolist() == problem.order.tolist()


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_bands_are_the_standard_error_over_the_seeds(binary, split):
    _, experiment, lines = first(binary)
    curves = curves_of(experiment, RECALL, split, lines)
    values = np.stack([100 * run.recall(split) for run in binary[:3]])
    mean, error = values.mean(0).T, (values.std(0, ddof=1) / np.sqrt(3)).T
    np.testing.assert_allclose(curves.mean, mean)
    np.testing.assert_allclose(curves.low, mean - error)
    np.testing.assert_allclose(curves.high, mean + error)
    assert not curves.grouped
    assert curves.steps.tolist() == binary[0].steps.tolist()


def test_gradient_quantities_are_those_of_the_run(binary):
    _, experiment, lines = first(binary[:1])
    run = binary[0]
    np.testing.assert_allclose(curves_of(experiment, NORM, "test", lines).mean, run.norms.T)
    np.testing.assert_allclose(curves_of(experiment, RATIO, "test", lines).mean, run.imbalance_ratio.T)
    angles = curves_of(experiment, ANGLE, "test", lines).mean
    np.testing.assert_allclose(np.cos(np.radians(angles)), run.cos_alpha.T, atol=1e-12)
    assert np.isnan(curves_of(experiment, NORM, "test", lines).low).all()


def test_groups_show_their_middle_and_four_fifths_of_their_classes(wide):
    problem, experiment, lines = first(wide)
    recalls = np.mean([100 * run.recall("test") for run in wide], axis=0)
    norms = np.mean([run.norms for run in wide], axis=0)
    for quantity, values, middle in ((RECALL, recalls, np.mean), (NORM, norms, np.median)):
        curves = curves_of(experiment, quantity, "test", lines)
        assert curves.grouped
        for row, line in enumerate(lines):
            chosen = values[:, line.classes]
            np.testing.assert_allclose(curves.mean[row], middle(chosen, axis=1))
            np.testing.assert_allclose(curves.low[row], np.percentile(chosen, 10, axis=1))
            np.testing.assert_allclose(curves.high[row], np.percentile(chosen, 90, axis=1))
    means = class_means(experiment, RECALL, "test", problem.order)
    np.testing.assert_allclose(means.mean, recalls.T[problem.order])


def test_groups_leave_out_what_is_not_finite(synthetic, wide):
    losses = wide[0]["train/loss"].copy()
    losses[:, 0] = np.inf
    losses[2, :10] = np.nan
    _, experiment, lines = first([synthetic.changed(wide[0], {"train/loss": losses})])
    curves = curves_of(experiment, LOSS, "train", lines)
    np.testing.assert_allclose(curves.mean[0, 1], np.median(losses[1, 1:10]))
    assert np.isnan(curves.mean[0, 2])
    assert np.isnan(curves.high[0, 2])
    assert np.isfinite(curves.mean[1:]).all()


def test_infinite_values_have_no_mean_and_no_warning(synthetic, binary):
    gram = binary[0]["gram"].copy()
    gram[-1] = [[1.0, 0.0], [0.0, 0.0]]
    runs = [synthetic.changed(run, {"gram": gram}) for run in binary[:2]]
    _, experiment, lines = first(runs)
    curves = curves_of(experiment, RATIO, "test", lines)
    assert np.isinf(curves.mean[1, -1])
    assert np.isnan(curves.high[1, -1])


def test_what_was_not_measured_has_no_curves(synthetic, binary):
    bare = {"gram": None, "test/confusion": None}
    problem, experiment, lines = first([synthetic.changed(binary[0], bare)])
    assert curves_of(experiment, NORM, "test", lines) is None
    assert curves_of(experiment, RECALL, "test", lines) is None
    assert curves_of(experiment, RECALL, "train", lines) is not None
    assert class_means(experiment, RECALL, "test", problem.order) is None
    assert overview_of(experiment, "macro", "test") is None


def test_overview_is_in_per_cent_with_its_error(binary):
    _, experiment, _ = first(binary)
    for name, read in (("macro", "macro_recall"), ("minority", "minority_recall")):
        curves = overview_of(experiment, name, "test")
        values = np.stack([100 * getattr(run, read)("test") for run in binary[:3]])
        np.testing.assert_allclose(curves.mean, values.mean(0)[np.newaxis])
        np.testing.assert_allclose(curves.high - curves.mean, [values.std(0, ddof=1) / np.sqrt(3)], atol=1e-12)


@pytest.mark.parametrize(
    ("last", "ticks"), [(0, [0, 1]), (1, [0, 1]), (9, [0, 1]), (10, [0, 1, 10]), (99999, [0, 1, 10, 100, 1000, 10000])]
)
def test_ticks_are_step_0_and_powers_of_ten(last, ticks):
    assert step_ticks(last) == ticks

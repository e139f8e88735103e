import math
from types import SimpleNamespace

import numpy as np
import pytest

from classgrad.dynamics import detect_mid, find_drop, learned_step, log_grid
from classgrad.dynamics._mid import MIN_AREA, MIN_DEPTH, _counts

STEPS = np.array([0, 1, 3, 7, 15, 31, 63])  # one octave apart


def drop_of(curve, chance=0.5, learned=None, steps=STEPS):
    return find_drop(steps, np.array(curve, dtype=float), chance, learned)


def losses_from(probabilities):
    return -np.log(np.asarray(probabilities, dtype=float))


class TestFindDrop:
    def test_a_full_drop_from_chance(self):
        drop = drop_of([0.5, 0.0, 0.0, 0.0, 0.25, 0.75, 1.0])
        assert (drop.start, drop.end) == (1, 31)
        assert (drop.initial, drop.lowest, drop.reference) == (0.5, 0.0, 0.5)
        assert (drop.below_initial, drop.below_chance, drop.depth, drop.relative_depth) == (0.5, 0.5, 0.5, 1.0)
        assert drop.octaves == 4.0
        assert drop.area == 0.5 + 1 + 1 + 0.75 + 0.25
        assert drop.area_steps == 0.5 * 1 + 1 * 2 + 1 * 4 + 0.75 * 8 + 0.25 * 16

    def test_a_fall_from_a_lucky_start_counts_only_below_chance(self):
        assert drop_of([1.0, 0.9, 0.8, 0.7, 0.8, 0.9, 0.9]).start is None
        drop = drop_of([1.0, 0.8, 0.2, 0.1, 0.8, 0.9, 0.9])
        assert (drop.start, drop.end) == (3, 15)
        assert drop.below_initial == pytest.approx(0.9)
        assert drop.depth == drop.below_chance == pytest.approx(0.4)
        assert drop.relative_depth == pytest.approx(0.8)

    def test_a_start_below_chance_is_the_level_to_fall_from(self):
        drop = drop_of([0.2, 0.1, 0.1, 0.3, 0.4, 0.6, 0.6])
        assert (drop.start, drop.end) == (1, 7)
        assert drop.depth == drop.below_initial == pytest.approx(0.1)
        assert drop.below_chance == pytest.approx(0.4)

    def test_a_class_that_starts_at_zero_and_stays_there_has_not_dropped(self):
        drop = drop_of([0.0] * 7)
        assert drop.start is None
        assert (drop.depth, drop.below_chance, drop.relative_depth, drop.area) == (0.0, 0.0, 0.0, 0.0)

    def test_a_drop_may_outlast_the_run(self):
        drop = drop_of([0.5, 0.5, 0.1, 0.1, 0.1, 0.1, 0.1])
        assert (drop.start, drop.end) == (3, None)
        assert drop.octaves == 4.0

    def test_a_drop_at_the_last_point_alone_has_no_length(self):
        drop = drop_of([0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.0])
        assert (drop.start, drop.end, drop.octaves, drop.area) == (63, None, 0.0, 0.5)

    def test_the_largest_of_several(self):
        drop = drop_of([0.5, 0.0, 0.5, 0.2, 0.2, 0.2, 0.5])
        assert (drop.start, drop.end) == (7, 63)

    def test_only_what_begins_before_the_run_has_learnt(self):
        curve = [0.5, 0.4, 0.5, 0.9, 0.0, 0.0, 0.0]
        assert drop_of(curve).start == 15
        assert drop_of(curve, learned=15).start == 1
        assert drop_of(curve, learned=1).start is None

    def test_points_that_are_not_finite_are_left_out(self):
        with_gaps = drop_of([0.5, 0.0, math.nan, 0.0, 0.6, math.inf, math.nan])
        kept = np.array([0, 1, 3, 4])
        assert with_gaps == drop_of([0.5, 0.0, 0.0, 0.6], steps=STEPS[kept])

    def test_without_a_first_point_there_is_nothing_to_compare_with(self):
        assert drop_of([math.nan] * 7) is None

    def test_one_point(self):
        assert drop_of([0.5], steps=STEPS[:1]).start is None


class TestLearnedStep:
    def test_first_point_with_half_of_the_gain_over_chance(self):
        assert learned_step(STEPS, np.array([0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.9]), 0.5) == 15

    def test_gain_counts_over_a_start_above_chance(self):
        assert learned_step(STEPS, np.array([0.7, 0.7, 0.72, 0.75, 0.8, 0.85, 0.9]), 0.5) == 15

    def test_a_short_crossing_is_not_learning(self):
        """A boundary that sweeps from one class to the other passes the right place on its way."""
        macro = np.array([0.5, 0.85, 0.5, 0.5, 0.9, 0.9, 0.9])
        assert learned_step(STEPS, macro, 0.5) == 15
        macro = np.array([0.5, 0.85, 0.85, 0.5, 0.9, 0.9, 0.9])  # held for two octaves
        assert learned_step(STEPS, macro, 0.5) == 1

    def test_what_lasts_to_the_end_is_held(self):
        assert learned_step(STEPS, np.array([0.5] * 6 + [0.9]), 0.5) == 63

    def test_a_run_that_gains_nothing_never_learns(self):
        assert learned_step(STEPS, np.array([0.6, 0.5, 0.5, 0.5, 0.6, 0.5, 0.5]), 0.5) is None
        assert learned_step(STEPS, np.full(7, math.nan), 0.5) is None

    def test_a_gain_that_is_never_held(self):
        assert learned_step(STEPS, np.array([0.5, 0.9, 0.5, 0.9, 0.5, 0.9, 0.5]), 0.5) is None


RECOVERY = [0.0, 0.0, 0.0, 0.4, 0.8, 0.9]


class TestDetectMid:
    def test_minority_that_falls_and_recovers(self, make_run):
        recalls = np.array([[0.5, 1, 1, 1, 0.95, 0.95, 0.95], [0.5, *RECOVERY]]).T
        mid = detect_mid(make_run(recalls, steps=STEPS))
        assert mid.verdict
        assert mid.basis == "recall"
        assert (mid.drop.start, mid.drop.end) == (1, 31)
        assert (mid.depth, mid.relative_depth) == (0.5, 1.0)
        assert mid.class_recalls == (detect_mid(make_run(recalls, steps=STEPS)).class_recalls[0], mid.recall)
        assert mid.loss is None
        assert mid.class_losses == (None, None)

    def test_the_majoritys_own_dip_is_none_of_the_minority(self, make_run):
        recalls = np.array([[0.5, *RECOVERY], [0.5, 1, 1, 1, 0.95, 0.95, 0.95]]).T
        mid = detect_mid(make_run(recalls, steps=STEPS))
        assert not mid.verdict
        assert mid.drop is None
        assert mid.depth == mid.relative_depth == 0.0
        assert mid.class_recalls[0].relative_depth == 1.0

    def test_learning_from_a_lucky_start_is_no_drop(self, make_run):
        recalls = np.array([[0, 0, 0.2, 0.5, 0.8, 0.9, 0.9], [1, 1, 1, 0.9, 0.85, 0.85, 0.9]]).T
        mid = detect_mid(make_run(recalls, steps=STEPS))
        assert (mid.verdict, mid.basis) == (False, "recall")

    def test_a_minority_that_starts_at_zero_is_judged_by_its_loss(self, make_run):
        recalls = np.array([[1, 1, 1, 1, 1, 0.95, 0.95], [0, *RECOVERY]]).T
        rising = losses_from([[0.6, 0.4], [0.8, 0.2], [0.9, 0.1], [0.9, 0.1], [0.8, 0.4], [0.9, 0.6], [0.9, 0.8]])
        mid = detect_mid(make_run(recalls, rising, STEPS))
        assert (mid.verdict, mid.basis) == (True, "loss")
        assert mid.drop is mid.loss
        assert mid.relative_depth == pytest.approx(0.75)
        falling = losses_from(np.linspace([0.6, 0.4], [0.9, 0.8], 7))
        mid = detect_mid(make_run(recalls, falling, STEPS))
        assert (mid.verdict, mid.basis) == (False, "loss")

    def test_without_losses_such_a_run_is_undecided(self, make_run):
        recalls = np.array([[1.0] * 7, [0, *RECOVERY]]).T
        mid = detect_mid(make_run(recalls, steps=STEPS))
        assert (mid.verdict, mid.basis) == (False, "undecided")

    def test_a_level_of_three_examples_is_too_few_to_fall_from(self, make_run):
        recalls = np.array([[0.75, 1, 1, 1, 1, 1, 1], [0.25, *RECOVERY]]).T
        assert detect_mid(make_run(recalls, steps=STEPS, examples=12)).basis == "undecided"
        assert detect_mid(make_run(recalls, steps=STEPS, examples=16)).basis == "recall"

    def test_one_bad_step_is_no_drop(self, make_run):
        steps = np.arange(7)
        recalls = np.array([[0.5] + [0.9] * 6, [0.5, 0.0, 0.6, 0.7, 0.8, 0.8, 0.8]]).T
        mid = detect_mid(make_run(recalls, steps=steps))
        assert mid.recall.relative_depth == 1.0
        assert not mid.verdict

    def test_a_shallow_drop_is_none_however_long(self, make_run):
        recalls = np.array([[0.5] + [0.9] * 6, [0.5] + [0.35] * 5 + [0.9]]).T
        mid = detect_mid(make_run(recalls, steps=STEPS))
        assert mid.recall.area > 1
        assert not mid.verdict

    def test_forgetting_late_is_not_initial(self, make_run):
        steps = np.array(log_grid(4000, 30))
        minority = np.select([steps <= 10, steps <= 500], [0.5, 0.9], default=0.0)
        majority = np.where(steps <= 10, 0.5, 0.9)
        mid = detect_mid(make_run(np.stack([majority, minority], axis=1), steps=steps))
        assert mid.learned == 13
        assert mid.recall.start is None
        assert not mid.verdict
        assert find_drop(steps, minority, 0.5).relative_depth == 1.0

    def test_balanced_data_has_no_minority(self, make_run):
        recalls = np.array([[0.5] * 7, [0.5, *RECOVERY]]).T
        mid = detect_mid(make_run(recalls, steps=STEPS, counts=[7, 7]))
        assert (mid.verdict, mid.basis, mid.recall, mid.loss) == (False, "no minority", None, None)

    def test_many_classes_are_judged_together(self, make_run):
        """One minority class of four falls from its lucky start while the others rise: the minority does not drop."""
        rising = [0.0, 0.1, 0.3, 0.5, 0.6, 0.7, 0.8]
        falling = [1.0, 0.5, 0.1, 0.0, 0.0, 0.4, 0.8]
        recalls = np.array([rising, rising, rising, rising, falling]).T
        mid = detect_mid(make_run(recalls, steps=STEPS, counts=[1000, 9, 8, 7, 6]))
        assert mid.class_recalls[4].relative_depth == 1.0
        assert (mid.verdict, mid.basis) == (False, "recall")
        all_fall = np.array([[0.0, *[1.0] * 6], *[[0.25, *RECOVERY]] * 4]).T
        mid = detect_mid(make_run(all_fall, steps=STEPS, counts=[1000, 9, 8, 7, 6]))
        assert mid.verdict
        assert mid.depth == pytest.approx(0.2)

    def test_a_run_cut_short_in_the_middle_of_its_drop(self, make_run):
        recalls = np.array([[0.5, 1, 1, 1, 1], [0.5, 0, 0, 0, 0]]).T
        mid = detect_mid(make_run(recalls, steps=STEPS[:5]))
        assert mid.verdict
        assert mid.learned is None
        assert mid.drop.end is None

    def test_a_single_point_decides_nothing_false(self, make_run):
        mid = detect_mid(make_run([[0.5, 0.5]]))
        assert (mid.verdict, mid.learned) == (False, None)

    def test_a_diverged_run_keeps_its_verdict(self, make_run):
        recalls = np.array([[1.0] * 7, [0.0] * 7]).T
        losses = losses_from([[0.6, 0.4]] + [[0.9, 0.05]] * 6)
        losses[-1] = math.nan
        losses[-2, 1] = math.inf
        mid = detect_mid(make_run(recalls, losses, STEPS))
        assert (mid.verdict, mid.basis) == (True, "loss")
        assert mid.loss.lowest == 0.0

    def test_a_split_without_minority_examples(self, make_run):
        run = make_run(np.array([[1.0] * 7, [0.5, *RECOVERY]]).T, steps=STEPS)
        run.series["test/confusion"][:, 1] = 0
        mid = detect_mid(run)
        assert (mid.basis, mid.recall) == ("undecided", None)
        assert mid.class_recalls[1] is None

    def test_other_splits(self, make_run):
        run = make_run(np.array([[0.5, 1, 1, 1, 1, 1, 1], [0.5, *RECOVERY]]).T, steps=STEPS)
        run.series["train/confusion"] = run.series.pop("test/confusion")
        assert detect_mid(run, split="train").verdict

    def test_json(self, make_run):
        mid = detect_mid(make_run(np.array([[1.0] * 7, [0.5, *RECOVERY]]).T, steps=STEPS))
        plain = mid.to_json()
        assert plain["verdict"] is True
        assert plain["recall"]["start"] == 1
        assert plain["class_losses"] == [None, None]


def test_the_least_drop_that_counts():
    assert _counts(SimpleNamespace(relative_depth=MIN_DEPTH, area=MIN_AREA))
    assert not _counts(SimpleNamespace(relative_depth=math.nextafter(MIN_DEPTH, 0), area=MIN_AREA))
    assert not _counts(SimpleNamespace(relative_depth=MIN_DEPTH, area=math.nextafter(MIN_AREA, 0)))

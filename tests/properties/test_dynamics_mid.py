"""The detectors against brute force on synthetic curves."""

import math

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from classgrad.dynamics import Run, detect_mid, find_drop, hitting_time, learned_step, log_grid

LEVELS = st.sampled_from([0.0, 0.05, 0.1, 0.2, 0.25, 0.4, 0.5, 0.6, 0.8, 1.0])


@st.composite
def measured_curves(draw, max_size=14):
    values = draw(st.lists(LEVELS, min_size=1, max_size=max_size))
    gaps = draw(st.lists(st.integers(1, 50), min_size=len(values) - 1, max_size=len(values) - 1))
    return np.cumsum([0, *gaps]), np.array(values)


def brute_force_drops(steps, curve, chance):
    """Every stretch below the reference as (start, end, lowest, octaves, area, area in steps), by plain loops."""
    reference = min(curve[0], chance)
    drops, t = [], 0
    while t < len(curve):
        if curve[t] >= reference:
            t += 1
            continue
        start = t
        while t < len(curve) and curve[t] < reference:
            t += 1
        last = min(t, len(curve) - 1)
        octaves = area = area_steps = 0.0
        for a in range(start - 1, last):
            left, right = (max(0.0, reference - curve[i]) / reference for i in (a, a + 1))
            width = math.log2(1 + steps[a + 1]) - math.log2(1 + steps[a])
            area += (left + right) / 2 * width
            area_steps += (left + right) / 2 * (steps[a + 1] - steps[a])
            octaves += width if a >= start else 0.0
        end = int(steps[t]) if t < len(curve) else None
        drops.append((int(steps[start]), end, min(curve[start:t]), octaves, area, area_steps))
    return drops


@settings(deadline=None, max_examples=150)
@given(measured_curves(), st.sampled_from([0.5, 0.1]), st.none() | st.integers(0, 300))
def test_the_drop_found_is_the_largest_of_all_that_begin_in_time(measured, chance, learned):
    steps, curve = measured
    found = find_drop(steps, curve, chance, learned)
    drops = [d for d in brute_force_drops(steps, curve, chance) if learned is None or d[0] < learned]
    assert (found.initial, found.chance) == (curve[0], chance)
    if not drops:
        assert (found.start, found.end, found.depth, found.area) == (None, None, 0.0, 0.0)
        return
    best = max(drops, key=lambda drop: drop[4])
    assert found.area == pytest.approx(best[4])
    same = next(drop for drop in drops if drop[0] == found.start)
    assert same[4] == pytest.approx(best[4])
    assert (found.end, found.lowest) == same[1:3]
    assert (found.octaves, found.area_steps) == (pytest.approx(same[3]), pytest.approx(same[5]))
    assert found.depth == pytest.approx(min(curve[0], chance) - same[2])


@settings(deadline=None, max_examples=150)
@given(measured_curves(), st.sampled_from([0.5, 0.1]))
def test_learning_is_the_first_crossing_that_holds(measured, chance):
    steps, macro = measured
    base, top = max(chance, macro[0]), macro.max()
    expected = None
    for t in range(len(macro)):
        crossing = macro[t] >= (base + top) / 2 and (t == 0 or macro[t - 1] < (base + top) / 2)
        if top > base and crossing:
            falls = [u for u in range(t, len(macro)) if macro[u] < (base + top) / 2]
            if not falls or math.log2((1 + steps[falls[0]]) / (1 + steps[t])) >= 2 - 1e-12:
                expected = int(steps[t])
                break
    assert learned_step(steps, macro, chance) == expected


@settings(deadline=None, max_examples=80)
@given(measured_curves(), st.sampled_from([0.5, 0.1]))
def test_a_curve_that_never_falls_below_its_start_never_drops(measured, chance):
    steps, curve = measured
    assert find_drop(steps, np.maximum(curve, curve[0]), chance).start is None
    assert find_drop(steps, np.maximum(curve, chance), chance).start is None


@settings(deadline=None, max_examples=80)
@given(measured_curves())
def test_what_happens_above_the_reference_does_not_matter(measured):
    steps, curve = measured
    reference = min(curve[0], 0.5)
    raised = np.where(curve >= reference, np.minimum(1.0, curve + 0.3), curve)
    raised[0] = curve[0]
    before, after = find_drop(steps, curve, 0.5), find_drop(steps, raised, 0.5)
    assert (before.start, before.end, before.area) == (after.start, after.end, after.area)


def run_with(steps, majority, minority, examples=200):
    recalls = np.stack([majority, minority], axis=1)
    hits = np.rint(recalls * examples).astype(np.int64)
    confusion = np.zeros((len(steps), 2, 2), dtype=np.int64)
    for c in range(2):
        confusion[:, c, c] = hits[:, c]
        confusion[:, c, 1 - c] = examples - hits[:, c]
    series = {"step": np.array(steps, dtype=np.int64), "test/confusion": confusion}
    return Run({"classes": ["majority", "minority"], "counts": [600, 10]}, series)


def dynamics_of(steps, initial, fall, recovery, dropping):
    """Smooth curves of an untrained net that guesses the minority with rate ``initial`` and then learns.

    The minority falls to nothing around step ``fall`` if ``dropping``, and is learnt around step ``recovery``.
    """
    x = np.log2(1.0 + np.array(steps))
    after = 1 / (1 + np.exp(-4 * (x - math.log2(1 + recovery))))
    before = 1 / (1 + np.exp(-4 * (x - math.log2(1 + fall))))
    if dropping:
        minority = initial * (1 - before) + 0.9 * after
        majority = (1 - initial) * (1 - before) + before * (1 - 0.05 * after)
    else:
        minority = initial + (0.9 - initial) * after
        majority = (1 - initial) + (0.95 - (1 - initial)) * after
    minority[0], majority[0] = initial, 1 - initial
    return np.clip(majority, 0, 1), np.clip(minority, 0, 1)


@settings(deadline=None, max_examples=80)
@example(0.5, 4, 64, 0)
@given(st.floats(0.1, 1.0), st.floats(3, 30), st.floats(8, 40), st.integers(0, 2**31))
def test_noisy_drops_are_told_from_noisy_learning_whatever_the_start(initial, fall, factor, seed):
    """A drop of three octaves or more is found; learning without one is not mistaken for it."""
    steps = log_grid(4000, 40)
    noise = np.random.default_rng(seed).normal(0, 0.02, size=(2, len(steps)))
    noise[:, 0] = 0
    for dropping in (True, False):
        majority, minority = dynamics_of(steps, initial, fall, fall * factor, dropping)
        run = run_with(steps, *np.clip(np.stack([majority, minority]) + noise, 0, 1))
        mid = detect_mid(run)
        assert mid.basis == "recall"
        assert mid.verdict is dropping
        assert detect_mid(run_with(steps, minority, majority)).verdict is False or not dropping


@settings(deadline=None, max_examples=80)
@given(st.lists(measured_curves(), min_size=1, max_size=4), LEVELS)
def test_hitting_times_are_first_crossings(curves, threshold):
    assume(threshold > 0)
    runs = [run_with(steps, curve, curve) for steps, curve in curves]
    tau = hitting_time(runs, threshold)
    expected = [next((int(s) for s, v in zip(*curve, strict=True) if v >= threshold), None) for curve in curves]
    assert tau.times == tuple(expected)
    assert tau.value == (math.inf if None in expected else pytest.approx(np.mean(expected)))

from __future__ import annotations

import numpy as np
import pytest

from classgrad.dynamics import Run, detect_mid
from classgrad.report._drops import view_drop
from classgrad.report._experiments import Experiment

EXAMPLES = 100
STEPS = np.array([0, 1, 2, 4, 8, 16, 32, 64], dtype=np.int64)
RISING = [0.3, 0.9, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
DROPPING = [0.6, 0.2, 0.05, 0.0, 0.1, 0.4, 0.7, 0.9]


def made(minority, seed=0, losses=None, counts=(90, 10), examples=EXAMPLES, majority=RISING):
    """A run of two classes with given recalls."""
    confusion = np.zeros((len(STEPS), 2, 2), dtype=np.int64)
    for label, curve in enumerate((majority, minority)):
        confusion[:, label, label] = np.rint(np.array(curve) * examples)
        confusion[:, label, 1 - label] = examples - confusion[:, label, label]
    series = {"step": STEPS, "test/confusion": confusion}
    if losses is not None:
        series["train/loss"] = np.stack([np.full(len(STEPS), 0.1), np.array(losses)], axis=1)
    return Run({"classes": ["big", "small"], "counts": list(counts), "seed": seed}, series)


def view(*runs):
    return view_drop(Experiment("gd", runs), "test")


def test_a_drop_is_told_and_placed_where_the_mean_has_it():
    found = view(made(DROPPING))
    assert found.sentence == (
        "Minority initial drop: the mean recall of the minority classes falls from 60 % to 0 % (step 4) and is back "
        "after step 32."
    )
    assert (found.span.start, found.span.end, found.span.bottom, found.span.lowest) == (1, 32, 4, {1: 4})


def test_several_runs_are_counted_and_the_mean_is_marked():
    deeper = [0.5, 0.1, 0.0, 0.0, 0.0, 0.0, 0.2, 0.3]
    found = view(made(DROPPING, 0), made(deeper, 1))
    mean = (np.array(DROPPING) + deeper) / 2
    assert found.sentence.startswith("Minority initial drop in 2 of 2 runs: ")
    assert found.sentence.endswith("and has not come back by the end.") == bool((mean[1:] < 0.5).all())
    assert found.span.bottom == STEPS[mean.argmin()]


def test_a_drop_that_lasts_is_open():
    found = view(made([0.6, 0.1, *[0.0] * 6]))
    assert found.span.end is None
    assert found.sentence.endswith("(step 2) and has not come back by the end.")


def test_no_drop():
    found = view(made(RISING))
    assert found.sentence == "No minority initial drop."
    assert found.span is None


def test_a_drop_of_few_runs_is_told_but_not_marked():
    found = view(made(DROPPING, 0), made(RISING, 1), made(RISING, 2))
    assert found.sentence == "Minority initial drop in 1 of 3 runs, too slight or too seldom to show in their mean."
    assert found.span is None


def test_a_drop_that_the_mean_hides_is_not_marked():
    found = view(made(DROPPING, 0), made([0.4, *[1.0] * 7], 1))
    assert "too slight" in found.sentence
    assert found.span is None


def test_where_recall_starts_at_zero_the_loss_tells():
    losses = [0.5, 2.0, 4.0, 4.0, 3.0, 1.0, 0.2, 0.1]
    run = made([0.0] * 5 + [0.5, 0.8, 0.9], losses=losses)
    assert detect_mid(run).basis == "loss"
    found = view(run)
    assert "recall starts too low to tell, but the probability given to the right class falls" in found.sentence
    assert found.span.bottom == 2
    assert found.span.level == pytest.approx(np.exp(-4.0))
    assert found.span.lowest == {}


def test_runs_of_both_kinds_are_told_by_what_most_are_judged_by():
    losses = [0.5, 2.0, 4.0, 4.0, 3.0, 1.0, 0.2, 0.1]
    by_loss = [made([0.0] * 5 + [0.5, 0.8, 0.9], seed, losses=losses) for seed in range(2)]
    by_recall = [made(DROPPING, seed, losses=losses) for seed in range(2, 4)]
    found = view(by_loss[0], *by_recall)
    assert found.sentence.startswith("Minority initial drop in 3 of 3 runs: the mean recall of the minority classes")
    assert "the probability given to the right class" in view(*by_loss, by_recall[0]).sentence


def test_balanced_data_has_no_minority_to_drop():
    assert view(made(DROPPING, counts=(50, 50))).sentence.startswith("No minority: ")


def test_too_few_examples_are_undecided():
    assert view(made([0.0] * 8, examples=2)).sentence.startswith("Too few examples")

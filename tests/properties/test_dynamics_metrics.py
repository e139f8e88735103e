import warnings
from itertools import pairwise

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as oracle

from classgrad.dynamics import (
    authors_grid,
    class_losses,
    confusion_matrix,
    f1,
    log_grid,
    macro_recall,
    precision,
    recall,
)


@st.composite
def labelled(draw):
    classes = draw(st.integers(1, 12))
    size = draw(st.integers(1, 60))
    seed = draw(st.integers(0, 2**31))
    return classes, *torch.randint(0, classes, (2, size), generator=torch.Generator().manual_seed(seed))


@settings(deadline=None, max_examples=100)
@given(labelled())
def test_metrics_are_those_of_scikit_learn(problem):
    classes, labels, predictions = problem
    confusion = confusion_matrix(predictions, labels, classes)
    arguments = {"labels": range(classes), "average": None, "zero_division": np.nan}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about single labels and classes without examples
        matrix = oracle.confusion_matrix(labels, predictions, labels=range(classes))
        balanced_accuracy = oracle.balanced_accuracy_score(labels, predictions)
    np.testing.assert_array_equal(confusion, matrix)
    np.testing.assert_allclose(macro_recall(confusion), balanced_accuracy, rtol=1e-12)
    for metric, score in ((recall, oracle.recall_score), (precision, oracle.precision_score), (f1, oracle.f1_score)):
        np.testing.assert_allclose(metric(confusion), score(labels, predictions, **arguments), rtol=1e-12)


@settings(deadline=None, max_examples=50)
@given(labelled())
def test_class_losses_are_means_over_members(problem):
    classes, labels, _ = problem
    losses = torch.rand(len(labels), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for c, found in enumerate(class_losses(losses, labels, classes).tolist()):
        members = losses[labels == c]
        np.testing.assert_allclose(found, members.mean() if len(members) else np.nan, rtol=1e-12)


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 10**7), st.integers(2, 400))
def test_log_grids_rise_from_zero_to_the_last_step_with_the_asked_number_of_points(steps, points):
    grid = log_grid(steps, points)
    assert (grid[0], grid[-1]) == (0, steps)
    assert all(a < b for a, b in pairwise(grid))
    assert len(grid) == 1 + min(points, steps)


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 10**7), st.integers(2, 400), st.integers(1, 6))
def test_authors_grids_rise_from_zero_to_the_last_step(steps, points, first):
    grid = authors_grid(steps, points, first)
    assert (grid[0], grid[-1]) == (0, steps)
    assert all(a < b for a, b in pairwise(grid))
    assert set(grid) >= set(range(min(first, points, steps) + 1))


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 10**5), st.integers(2, 60))
def test_log_grids_are_the_authors_grids_but_for_their_first_points(steps, points):
    """Their loop, spelled out: round log-spaced points, then push up every point that is not above its predecessor."""
    spaced = [round(float(x)) for x in np.geomspace(1, max(steps, 1), min(points, steps))]
    rising = []
    for value in spaced:
        rising.append(max(value, rising[-1] + 1) if rising else value)
    assert log_grid(steps, points) == (0, *rising)

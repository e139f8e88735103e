from __future__ import annotations

import math
from dataclasses import replace

import pytest

from classgrad import InputError
from classgrad.dynamics import Estimate, HittingTime, summarize
from classgrad.report import ResultRow, result_table
from classgrad.report._results import percent


def test_rows_are_the_summaries_of_the_seeds(pair):
    rows = result_table(pair)
    assert [(row.data, row.algorithm) for row in rows] == [
        ("gauss-bi20", "gd"), ("gauss-bi20", "pcngd"), ("gauss-lt10", "gd"), ("gauss-lt10", "pcngd"),
    ]  # fmt: skip
    for row, start in zip(rows, range(0, 12, 3), strict=True):
        assert row.summary == summarize(pair[start : start + 3])
        assert row.notes == ()


def test_without_a_test_set_the_validation_set_tells(synthetic, binary):
    runs = [synthetic.changed(run, {"test/confusion": None, "test/loss": None}) for run in binary]
    assert [row.summary for row in result_table(runs)] == [
        summarize(runs[:3], split="validation"), summarize(runs[3:], split="validation"),
    ]  # fmt: skip


def test_runs_that_did_not_finish_do_not_spoil_the_numbers(synthetic, binary):
    broken = synthetic.cut(binary[2], 5, "diverged")
    (row,) = result_table([*binary[:2], broken])
    assert row.summary == summarize(binary[:2])
    assert "left out" in row.notes[0]


def test_unmeasured_recall_gives_a_row_of_dashes(synthetic, binary):
    gone = {f"{split}/confusion": None for split in ("train", "validation", "test")}
    (row,) = result_table([synthetic.changed(binary[0], gone)])
    assert row.summary is None
    assert set(row.cells().values()) == {"gauss-bi20", "gd", "–"}


def test_no_runs_are_refused():
    with pytest.raises(InputError):
        result_table([])


@pytest.fixture(scope="module")
def summary(binary):
    """A real summary with numbers that are easy to read, some replaced."""
    chosen = replace(
        summarize(binary[:3]),
        peak=Estimate(0.912, 0.0042, 3),
        minority_final=Estimate(0.7, math.nan, 1),
        tau=HittingTime(0.7, (10, 12, 14), 12.0, 1.15),
        mid_fraction=1.0,
        mid_depth=Estimate(0.25, 0.02, 3),
        mid_relative_depth=Estimate(0.5, 0.02, 3),
    )
    return lambda **more: replace(chosen, **more)


def test_cells_are_written_for_people(summary):
    assert ResultRow("digits", "gd", summary()).cells() == {
        "data": "digits",
        "algorithm": "gd",
        "peak macro recall": "91.2 ± 0.4 %",
        "R*": "70 %",
        "steps to R*": "12 ± 1.1",
        "minority recall": "70.0 %",
        "minority initial drop": "yes, 25 points (50 %)",
        "seeds": "3",
    }


@pytest.mark.parametrize(
    ("tau", "text"),
    [
        (HittingTime(0.7, (None, None, None), math.inf, math.nan), "not reached"),
        (HittingTime(0.7, (5, None, None), math.inf, math.nan), "reached by 1 of 3"),
        (HittingTime(0.7, (1200, 1300, 1300), 1266.7, 33.3), "1,267 ± 33"),
        (HittingTime(0.7, (3,), 3.0, 1.0), "3 ± 1"),
    ],
)
def test_times_are_written_for_people(summary, tau, text):
    assert ResultRow("", "", summary(tau=tau)).cells()["steps to R*"] == text


@pytest.mark.parametrize(
    ("fraction", "depth", "text"),
    [
        (0.0, 0.0, "no"),
        (math.nan, math.nan, "–"),
        (2 / 3, 0.1, "in 67 % of runs, 10 points (50 %)"),
        (1.0, 0.001, "yes, under 1 point (50 %)"),
    ],
)
def test_drops_are_written_for_people(summary, fraction, depth, text):
    row = ResultRow("", "", summary(mid_fraction=fraction, mid_depth=Estimate(depth, 0.0, 3)))
    assert row.cells()["minority initial drop"] == text


def test_an_unknown_share_is_a_dash():
    assert percent(Estimate(math.nan, math.nan, 1)) == "–"

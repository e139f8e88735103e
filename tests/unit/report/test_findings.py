from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from classgrad.report import findings


def row(name, *, drop=0.0, depth=0.0, tau=10.0, reached=3, peak=0.8):
    tau = SimpleNamespace(threshold=0.7, value=tau, reached=reached)
    numbers = {
        "mid_fraction": drop,
        "mid_depth": SimpleNamespace(mean=depth),
        "tau": tau,
        "peak": SimpleNamespace(mean=peak),
    }
    return SimpleNamespace(algorithm=name, summary=SimpleNamespace(**numbers))


def test_who_drops_and_who_does_not():
    rows = [row("gd", drop=1.0, depth=0.3), row("sgd", drop=0.67, depth=0.21), row("pcngd"), row("sgd+o")]
    assert findings(rows)[0] == (
        "With gd and sgd the minority classes first get worse, by 21 to 30 points, before they are learnt (the "
        "minority initial drop); with pcngd and sgd+o they do not."
    )


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (
            [row("gd", drop=1.0, depth=0.25)],
            "With gd the minority classes first get worse, by 25 points, before they are learnt (the minority initial "
            "drop).",
        ),
        ([row("gd"), row("sgd")], "With gd and sgd the minority classes do not get worse at first."),
        (
            [row("gd", drop=0.2), row("sgd")],
            "With gd the minority classes first get worse in some runs, but not in most.",
        ),
    ],
)
def test_drops_in_all_few_or_no_runs(rows, sentence):
    assert findings(rows)[0] == sentence


def test_runs_that_cannot_be_judged_say_nothing_of_drops():
    assert findings([row("gd", drop=math.nan)]) == ["gd is the first to reach 70 % macro recall, after 10 steps."]


def test_a_single_step():
    assert findings([row("gd", drop=math.nan, tau=1.0)]) == [
        "gd is the first to reach 70 % macro recall, after 1 step."
    ]


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (
            [row("gd", tau=30.0, peak=0.7), row("pcngd", tau=4.0, peak=0.9)],
            "pcngd is the first to reach 70 % macro recall, after 4 steps; gd needs 30, 7.5 times as many. The highest "
            "macro recall, 90.0 %, is that of pcngd.",
        ),
        (
            [row("gd", tau=math.inf, reached=0), row("pcngd", tau=0.0), row("sgd", tau=5.0, peak=0.1)],
            "pcngd is the first to reach 70 % macro recall, after 0 steps; sgd needs 5; gd never does. The highest "
            "macro recall, 80.0 %, is that of gd and pcngd.",
        ),
        (
            [row("gd", peak=0.9), row("pcngd", tau=10.04), row("sgd", tau=12.0, peak=0.9001)],
            "gd and pcngd are the first to reach 70 % macro recall, after 10 steps; sgd needs 12, 1.2 times as many. "
            "The highest macro recall, 90.0 %, is that of gd and sgd.",
        ),
        (
            [row("gd"), row("pcngd")],
            "gd and pcngd are the first to reach 70 % macro recall, after 10 steps. The highest macro recall, 80.0 %, "
            "is the same with all.",
        ),
        (
            [row("gd", tau=math.inf, reached=0), row("sgd", tau=math.inf, reached=1, peak=math.nan)],
            "No algorithm reaches 70 % macro recall with every seed.",
        ),
    ],
)
def test_who_is_soonest_and_best(rows, sentence):
    assert findings(rows)[1] == sentence


def test_several_that_never_arrive():
    rows = [row("gd", tau=math.inf, reached=0), row("sgd", tau=math.inf, reached=0), row("pcngd")]
    assert "; gd and sgd never do." in findings(rows)[1]


def test_unmeasured_recall_is_told():
    rows = [SimpleNamespace(algorithm="gd", summary=None)]
    assert findings(rows) == ["Recall was not measured, so there is no result to tell."]

from __future__ import annotations

import numpy as np
import pytest

from classgrad import InputError
from classgrad.report._experiments import problems


def labels(runs):
    return [[experiment.label for experiment in problem.experiments] for problem in problems(runs)]


def test_runs_are_grouped_by_data_then_algorithm_in_the_order_given(pair):
    found = problems(pair)
    assert [problem.label for problem in found] == ["gauss-bi20", "gauss-lt10"]
    assert labels(pair) == [["gd", "pcngd"], ["gd", "pcngd"]]
    assert [len(experiment.runs) for problem in found for experiment in problem.experiments] == [3, 3, 3, 3]
    assert labels(pair[::-1]) == [["pcngd", "gd"], ["pcngd", "gd"]]


def test_namesakes_are_told_apart_by_the_settings_they_differ_in(synthetic, binary):
    slow = [synthetic.changed(run, lr=0.01) for run in binary if run.meta["algorithm"] == "gd"]
    assert labels([*binary, *slow]) == [["gd, lr 0.15", "pcngd", "gd, lr 0.01"]]
    longer = [synthetic.changed(run, steps=1000) for run in binary[:3]]
    assert labels([*binary[:3], *longer]) == [["gd, steps 80", "gd, steps 1000"]]
    odd = [synthetic.changed(run, batch_size=size) for run, size in zip(binary[:2], (None, {"a": 1}), strict=True)]
    assert labels(odd) == [["gd, batch size none", 'gd, batch size {"a": 1}']]


def test_runs_on_other_data_or_with_other_options_are_no_seeds_of_one_experiment(synthetic, binary):
    one, other = (
        synthetic.changed(binary[0], seed=seed, fingerprint=str(rho), spec=spec_of(binary[0], imbalance=rho))
        for seed, rho in enumerate((5, 100))
    )
    assert labels([one, other]) == [["gd, imbalance 5", "gd, imbalance 100"]]
    exact = synthetic.changed(binary[1], precision="bf16")
    assert labels([binary[0], exact])[0][1].endswith("precision bf16")
    seeds = [synthetic.changed(run, spec={**spec_of(run), "device": str(n)}) for n, run in enumerate(binary[:3])]
    assert labels(seeds) == [["gd"]]


def spec_of(run, **options):
    return {"data": "gauss", "algorithm": run.meta["algorithm"], "seed": run.meta["seed"], "data_options": options}


def test_the_same_run_twice_counts_once_and_another_of_the_same_seed_stands_apart(synthetic, binary):
    again = synthetic.changed(binary[0])
    assert labels([*binary[:3], binary[0], again]) == [["gd"]]
    other = synthetic.changed(binary[0], {"test/loss": binary[0]["test/loss"] + 1})
    assert labels([*binary[:3], other]) == [["gd", "gd (2)"]]
    without_seed = [synthetic.changed(run, seed=None) for run in binary[:3]]
    assert [len(e.runs) for e in problems(without_seed)[0].experiments] == [3]


def test_protocols_and_class_sets_make_problems_of_their_own(synthetic, binary):
    authors = [synthetic.changed(run, protocol="authors") for run in binary]
    renamed = [synthetic.changed(run, classes=["a", "b"]) for run in binary]
    assert [p.label for p in problems([*binary, *authors])] == [
        "gauss-bi20, protocol paper",
        "gauss-bi20, protocol authors",
    ]
    assert [p.label for p in problems([*binary, *renamed])] == ["gauss-bi20", "gauss-bi20 (2)"]
    unnamed = synthetic.changed(binary[0], data=None, algorithm=None)
    assert (problems([unnamed])[0].label, labels([unnamed])) == ("data", [["algorithm"]])


def test_classes_go_from_majority_to_minority_by_the_most_imbalanced_run(synthetic, binary):
    swapped = synthetic.changed(binary[0], counts=[30, 600])
    balanced = synthetic.changed(binary[3], counts=[600, 600])
    problem = problems([balanced, swapped])[0]
    assert problem.counts.tolist() == [30, 600]
    assert problem.order.tolist() == [1, 0]
    assert problem.classes == ["class 1", "class 0"]
    empty = problems([synthetic.changed(binary[0], counts=[0, 5])])[0]
    assert empty.order.tolist() == [1, 0]


def test_averages_are_of_the_runs_that_finished_unless_none_did(synthetic, binary):
    broken = synthetic.cut(binary[2], 5, "diverged", "diverged at step 3")
    mixed = problems([*binary[:2], broken])[0].experiments[0]
    assert mixed.averaged == mixed.runs[:2]
    none = problems([broken])[0].experiments[0]
    assert none.averaged == (broken,)


def test_results_come_from_the_test_set_or_the_next_best(synthetic, binary):
    def split_of(*gone):
        run = synthetic.changed(binary[0], {f"{split}/confusion": None for split in gone})
        return problems([run])[0].experiments[0].split

    assert split_of() == "test"
    assert split_of("test") == "validation"
    assert split_of("test", "validation") == "train"
    assert split_of("test", "validation", "train") is None


def test_a_split_counts_only_if_every_averaged_run_has_it(synthetic, binary):
    lacking = synthetic.changed(binary[1], {"test/confusion": None})
    experiment = problems([binary[0], lacking])[0].experiments[0]
    assert experiment.splits == ("train", "validation")
    assert experiment.measured("gram")
    assert not experiment.measured("test/confusion")


def test_last_is_the_furthest_step_of_any_run(synthetic, binary):
    assert problems([synthetic.cut(binary[0], 4), binary[1]])[0].last == 80
    assert np.array_equal(problems(binary)[0].runs[0].steps, binary[0].steps)


def test_no_runs_are_refused():
    with pytest.raises(InputError, match="at least one run"):
        problems([])

from __future__ import annotations

import json

import numpy as np
import pytest

from classgrad.report._experiments import problems
from classgrad.report._payload import confusion_at, dump, final_step, payload


def content(runs):
    """What the script gets: through JSON, as in the page."""
    return json.loads(dump(payload(problems(runs))))


def test_curves_are_those_of_the_runs_to_four_digits(pair):
    problem = content(pair)["problems"][1]
    gd = problem["experiments"][0]
    runs = pair[6:9]
    mean = np.mean([100 * run.recall("validation") for run in runs], axis=0).T
    np.testing.assert_allclose(gd["curves"]["validation/recall"]["mean"], mean, rtol=6e-4)
    assert gd["curves"]["validation/recall"]["steps"] == runs[0].steps.tolist()
    norms = np.mean([run.norms for run in runs], axis=0).T
    np.testing.assert_allclose(gd["curves"]["norm"]["mean"], norms, rtol=6e-4)
    assert problem["ticks"] == [0, 1, 10]
    assert problem["splits"] == ["test", "validation", "train"]
    assert gd["maps"] == {}


def test_a_single_seed_has_no_band(binary):
    curves = content(binary[:1])["problems"][0]["experiments"][0]["curves"]["test/recall"]
    assert {value for row in curves["high"] for value in row} == {None}


def test_confusions_add_the_seeds_and_go_from_majority_to_minority(synthetic, binary):
    runs = [synthetic.changed(run, counts=[30, 600]) for run in binary[:3]]
    found = content(runs)["problems"][0]["experiments"][0]["confusions"]["test"]["final"]
    total = sum(run.confusion("test")[-1] for run in binary[:3])
    assert found["matrix"] == total[::-1, ::-1].tolist()
    assert found["title"] == "at the end (step 80)"


def test_the_drop_comes_with_its_confusion_matrix(binary):
    gd, pcngd = content(binary)["problems"][0]["experiments"]
    span = gd["drops"]["test"]["span"]
    bottom = gd["confusions"]["test"]["bottom"]
    at = binary[0].steps.tolist().index(span["bottom"])
    assert bottom["matrix"] == sum(run.confusion("test")[at] for run in binary[:3]).tolist()
    assert f"step {span['bottom']}" in bottom["title"]
    assert span["lowest"] == {"1": span["bottom"]}
    assert pcngd["drops"]["test"] == {"sentence": "No minority initial drop.", "span": None}
    assert "bottom" not in pcngd["confusions"]["test"]


def test_the_page_opens_with_a_drop_beside_none(synthetic, binary):
    assert content(binary[::-1])["problems"][0]["opening"] == ["gd", "pcngd"]
    assert content(binary[:3])["problems"][0]["opening"] == ["gd"]
    assert content([*binary[:3], *synthetic.demo_runs(1, ("sgd",), 80)[:1]])["problems"][0]["opening"] == ["gd", "sgd"]
    assert content(binary[3:])["problems"][0]["opening"] == ["pcngd"]


def test_the_same_algorithm_looks_the_same_on_every_data_set(pair):
    first, second = content(pair)["problems"]
    assert [e["colours"] for e in first["experiments"]] == [e["colours"] for e in second["experiments"]]


def test_many_classes_come_as_groups_and_a_map(wide):
    (problem,) = content(wide)["problems"]
    (experiment,) = problem["experiments"]
    assert [len(experiment["curves"]["test/recall"][part]) for part in ("mean", "low", "high")] == [3, 3, 3]
    assert experiment["curves"]["test/recall"]["grouped"]
    assert np.shape(experiment["maps"]["test/recall"]["mean"]) == (30, len(wide[0].steps))
    assert set(experiment["maps"]) == {f"{split}/recall" for split in ("train", "validation", "test")}
    assert len(problem["classes"]) == 30
    for drop in experiment["drops"].values():
        assert not drop["span"] or drop["span"]["lowest"] == {}


def test_what_is_not_finite_or_not_measured_is_null(synthetic, binary):
    losses = binary[0]["train/loss"].copy()
    losses[1, 0], losses[2, 1] = np.inf, np.nan
    changes = {"train/loss": losses, "gram": None, "test/confusion": None, "test/loss": None}
    (problem,) = content([synthetic.changed(binary[0], changes)])["problems"]
    curves = problem["experiments"][0]["curves"]
    assert curves["train/loss"]["mean"][0][1] is None
    assert curves["train/loss"]["mean"][1][2] is None
    assert curves["norm"] is curves["test/recall"] is None
    assert problem["splits"] == ["validation", "train"]
    assert set(problem["experiments"][0]["overview"]) == {"train", "validation"}


def test_a_run_without_any_split_still_has_a_page(synthetic, binary):
    gone = {name: None for name in binary[0].series if "/" in name}
    (problem,) = content([synthetic.changed(binary[0], gone)])["problems"]
    assert problem["splits"] == ["train"]
    assert problem["experiments"][0]["curves"]["norm"] is not None


def test_final_step_is_the_last_that_all_seeds_share(synthetic, binary):
    shorter = synthetic.cut(binary[1], 7, "finished")
    problem = problems([binary[0], shorter])[0]
    experiment = problem.experiments[0]
    assert final_step(experiment) == shorter.steps[-1]
    matrix = confusion_at(problem, experiment, "test", final_step(experiment))
    np.testing.assert_array_equal(matrix, binary[0].confusion("test")[6] + binary[1].confusion("test")[6])


def test_infinities_never_reach_the_page():
    with pytest.raises(ValueError, match="JSON"):
        dump({"value": float("inf")})

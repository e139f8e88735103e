from __future__ import annotations

import json
import shlex

from classgrad.report._experiments import problems
from classgrad.report._repeat import commands, settings
from classgrad.training import RunSpec


def with_spec(synthetic, run, **fields):
    """A run as classgrad's own training records it, with the settings in ``meta``."""

    spec = RunSpec(
        data="digits-bi20",
        **{"algorithm": run.meta["algorithm"], "lr": 0.15, "steps": 80, "seed": run.meta["seed"]} | fields,
    )
    return synthetic.changed(run, spec=json.loads(spec.to_json()), lr=spec.lr, steps=spec.steps, **spec.labels())


def test_algorithms_with_equal_settings_share_a_command(synthetic, binary):
    runs = [with_spec(synthetic, run) for run in binary]
    assert commands(problems(runs)[0]) == [
        "classgrad compare digits-bi20 --algorithms gd,pcngd --model mlp --lr 0.15 --steps 80 --seeds 3"
    ]


def test_other_rates_and_seeds_make_commands_of_their_own(synthetic, binary):
    runs = [with_spec(synthetic, run, lr=0.5 if run.meta["algorithm"] == "gd" else 0.25) for run in binary[2:4]]
    assert commands(problems(runs)[0]) == [
        "classgrad train digits-bi20 --algorithm gd --model mlp --lr 0.5 --steps 80 --seeds 2,",
        "classgrad train digits-bi20 --algorithm pcngd --model mlp --lr 0.25 --steps 80 --seeds 1",
    ]


def test_everything_unusual_is_in_the_command_and_quoted(synthetic, binary):
    run = with_spec(
        synthetic, binary[1], grid=[0, 5, 10], batch_size=32, precision="float64", every=True, crop=4,
        optimizer_options={"momentum": 0.9}, data_options={"imbalance": 50, "target": "7", "note": "two words"},
        model_options={"hidden": [64, 64]},
    )  # fmt: skip
    (line,) = commands(problems([run])[0])
    words = shlex.split(line)
    assert words[:5] == ["classgrad", "train", "digits-bi20", "--algorithm", "gd"]
    pairs = list(zip(words[5::2], words[6::2], strict=True))
    assert dict(pairs)["--grid"] == "0,5,10"
    assert dict(pairs)["--seeds"] == "1,"
    assert {value for flag, value in pairs if flag == "--set"} == {
        "every=true", "crop=4", "optimizer.momentum=0.9", "model.hidden=[64, 64]",
    }  # fmt: skip
    assert {value for flag, value in pairs if flag == "--option"} == {"imbalance=50", 'target="7"', "note=two words"}


def test_runs_that_do_not_know_their_settings_have_no_command(synthetic, binary):
    assert commands(problems([synthetic.changed(binary[0], spec=None)])[0]) == []


def test_settings_are_shared_or_set_against_each_other(synthetic, binary):
    runs = [*binary[:3], *(synthetic.changed(run, lr=0.5, seed=run.meta["seed"] + 5) for run in binary[3:])]
    shared, differing = settings(problems(runs)[0])
    assert dict(shared)["optimizer"] == "sgd"
    assert dict(shared)["versions: numpy"]
    assert "message" not in dict(shared)
    assert dict(differing)["lr"] == ["0.15", "0.5"]
    assert dict(differing)["seeds"] == ["0, 1, 2", "5, 6, 7"]
    assert "batch size" not in dict(shared)

import dataclasses

import pytest

from classgrad import InputError
from classgrad.training import RunSpec

BASE = RunSpec("digits-bi20", "pcngd", lr=0.1, steps=10)
OTHER = {
    "algorithm": "gd",
    "lr": 0.2,
    "steps": 11,
    "model": "simple_cnn",
    "protocol": "authors",
    "batch_size": 5,
    "seed": 1,
    "grid": (1, 2),
    "schedule": "inverse-sqrt",
    "optimizer": "adam",
    "scheduler": "steplr",
    "device": "cpu",
    "precision": "float64",
    "crop": 1,
    "flip": True,
    "gradients": False,
    "every": True,
    "chunk": 3,
    "threads": 2,
    "compile": True,
    "channels_last": True,
    "model_options": {"hidden": [3]},
    "rule_options": {"eps": 0.1},
    "optimizer_options": {"momentum": 0.9},
}


@pytest.mark.parametrize("name", OTHER)
def test_every_setting_is_part_of_the_identity(name):
    other = dataclasses.replace(BASE, **{name: OTHER[name]})
    assert other.identity("abc") != BASE.identity("abc")
    assert RunSpec.from_json(other.to_json()) == other


def test_the_identity_is_that_of_the_data_and_not_of_its_name():
    moved = dataclasses.replace(BASE, data="elsewhere/digits.npz", data_options={"seed": 1})
    assert moved.identity("abc") == BASE.identity("abc") != BASE.identity("abd")


def test_replaying_is_no_part_of_the_identity_and_the_usual_chunk_has_two_names():
    assert dataclasses.replace(BASE, capture=False).identity("abc") == BASE.identity("abc")
    assert dataclasses.replace(BASE, chunk=4096).identity("abc") == BASE.identity("abc")


def test_names_may_be_written_in_capitals():
    loud = dataclasses.replace(BASE, precision="Float64", model="MLP", optimizer="SGD", scheduler="StepLR")
    assert (loud.precision, loud.model, loud.optimizer, loud.scheduler) == ("float64", "mlp", "sgd", "steplr")


def test_labels_tell_apart_what_options_change():
    spec = dataclasses.replace(
        BASE, algorithm="pcnsgd+r", rule_options={"every": 2}, schedule="inverse-sqrt", optimizer="adam"
    )
    assert spec.labels() == {
        "algorithm": "pcnsgd+r(every=2)",
        "model": "mlp",
        "optimizer": "adam(schedule=inverse-sqrt)",
    }
    assert BASE.labels()["optimizer"] == "sgd"


def test_a_torch_scheduler_starts_from_a_constant_rate():
    assert dataclasses.replace(BASE, scheduler="CosineAnnealingLR").schedule_name == "constant"
    assert dataclasses.replace(BASE, protocol="authors", algorithm="sgd+o").schedule_name == "authors-decay"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lr": 0.0}, "`lr` should be a number above 0"),
        ({"lr": float("nan")}, "`lr`"),
        ({"lr": "fast"}, "`lr`"),
        ({"steps": 0}, "`steps` should be a whole number of at least 1"),
        ({"steps": True}, "`steps`"),
        ({"seed": -1}, "`seed`"),
        ({"batch_size": 1.5}, "`batch_size`"),
        ({"precision": "half"}, "should be one of float64, float32, tf32, bf16"),
        ({"model": "gpt"}, "`model`"),
        ({"optimizer": "lbfgs"}, "`optimizer`"),
        ({"optimizer": "sparseadam"}, "`optimizer`"),
        ({"scheduler": "LambdaLR"}, "`scheduler`"),
        ({"scheduler": "_LRScheduler"}, "`scheduler`"),
        ({"scheduler": "steplr", "schedule": "inverse-sqrt"}, "give one of them"),
        ({"grid": "linear"}, "`grid`"),
        ({"chunk": "all"}, "`chunk` should be auto or a whole number"),
        ({"chunk": 0}, "`chunk`"),
        ({"capture": 1}, "`capture` should be true or false"),
        ({"channels_last": "yes"}, "`channels_last` should be true or false"),
        ({"flip": "False"}, "`flip` should be true or false"),
        ({"gradients": 0}, "`gradients` should be true or false"),
        ({"every": "yes"}, "`every` should be true or false"),
        ({"threads": 100_000}, "`threads` should be at most"),
        ({"device": 5}, "`device` should be auto, cpu, cuda"),
        ({"grid": 3}, "`grid` should be a name or a list of steps"),
        ({"grid": {}}, "`grid` should be a name or a list of steps"),
        ({"grid": [1, "a"]}, "`grid` should list whole steps"),
        ({"rule_options": {"eps": "x"}}, "`eps` should be at least 0"),
        ({"scheduler_options": {"T_max": 3}}, "`scheduler_options` should come with a `scheduler`"),
        ({"grid": [99]}, "`grid`"),
        ({"algorithm": "sgdd"}, "`algorithm`"),
        ({"schedule": "gd-theorem"}, "smoothness"),
    ],
)
def test_bad_settings_are_refused_in_one_line(changes, message):
    with pytest.raises(InputError, match=message) as error:
        dataclasses.replace(BASE, **changes)
    assert "\n" not in str(error.value)


def test_settings_must_be_plain_and_known():
    with pytest.raises(InputError, match="plain JSON"):
        dataclasses.replace(BASE, model_options={"hidden": {1}}).to_json()
    with pytest.raises(InputError, match="cannot be read"):
        RunSpec.from_json('{"data": "x", "colour": "red"}')
    with pytest.raises(InputError, match="cannot be read"):
        RunSpec.from_json("not json")

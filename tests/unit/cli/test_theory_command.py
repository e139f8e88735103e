"""``classgrad theory``, as a user calls it."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from classgrad.cli import main
from classgrad.dynamics import Run, save_run
from classgrad.theory import descend, logistic
from classgrad.theory._check import THEOREMS, Theorem
from classgrad.theory._records import Bound
from classgrad.training import RunSpec, train

PNG = b"\x89PNG\r\n"


def call(capsys, *arguments: str) -> tuple[int, str, str]:
    code = main(["theory", *arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.fixture(scope="module")
def full_record(tmp_path_factory):
    """A record of gradient descent on the logistic toy, every step."""
    problem, steps = logistic(), 40
    path = descend(problem, "gd", steps, 0.05)
    end = torch.full((1, 2), torch.nan, dtype=torch.float64)
    series = {
        "step": torch.arange(steps + 1),
        "gram": torch.cat([path.gram, path.gram[-1:]]),
        "lr": torch.cat([path.lr, end[0, :1]]),
        "weights": torch.cat([torch.ones(steps, 2, dtype=torch.float64), end]),
        "train/loss": path.losses * problem.counts.sum() / problem.counts,
        "measured_change": torch.cat([path.losses.diff(dim=0), end]),
    }
    meta = {"classes": ["many", "few"], "counts": problem.counts.tolist(), "algorithm": "gd", "data": "gaussians"}
    folder = tmp_path_factory.mktemp("run")
    save_run(
        Run(meta, {name: np.ascontiguousarray(values.numpy()) for name, values in series.items()}), folder / "run.npz"
    )
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    train(RunSpec("digits-bi20", "pcnsgd", lr=0.05, steps=3, device="cpu", model="mlp"), folder)
    return folder


def test_check_prints_a_line_per_theorem_and_succeeds(capsys):
    code, out, _ = call(capsys, "check", "--problem", "many-classes", "--steps", "10")
    assert code == 0
    assert "pcngd-second" in out
    assert "never" in out
    assert "none violated" in out


def test_check_as_json(capsys):
    code, out, _ = call(capsys, "check", "--problem", "least-squares", "--steps", "10", "--json")
    rows = json.loads(out)
    assert code == 0
    assert {row["theorem"] for row in rows} == set(THEOREMS)
    assert all(row["held"] for row in rows)


def test_a_printed_bound_may_fail_without_failing_the_command(capsys):
    code, out, _ = call(capsys, "check", "--problem", "many-classes", "--steps", "30", "--statement", "printed")
    assert code == 0
    assert "VIOLATED" in out
    assert "docs/theory.md" in out


def test_a_proved_bound_that_fails_makes_exit_code_1(capsys, monkeypatch):
    def wrong(problem, steps, statement):
        shape = torch.ones(steps, 2)
        return Bound("wrong", statement, 2 * shape, shape, shape.bool())

    monkeypatch.setitem(THEOREMS, "wrong", Theorem("nowhere", wrong))
    code, out, _ = call(capsys, "check", "--problem", "conflict", "--steps", "2")
    assert code == 1
    assert "wrong" in out


def test_run_describes_a_full_record(capsys, full_record):
    code, out, _ = call(capsys, "run", str(full_record))
    assert code == 0
    assert "gd on gaussians" in out
    assert "gd-alternate" in out
    assert (full_record / "theory.png").read_bytes().startswith(PNG)


def test_run_as_json_counts_who_got_worse(capsys, full_record, tmp_path):
    code, out, _ = call(capsys, "run", str(full_record / "run.npz"), "--json", "--out", str(tmp_path))
    facts = json.loads(out)
    assert code == 0
    assert facts["predicted_worse"][1] > 0
    assert facts["both"][1] == min(facts["predicted_worse"][1], facts["got_worse"][1])
    assert facts["both_at_steps"][1][0] == 0
    assert facts["why_no_bounds"] is None
    assert [bound["violated"] for bound in facts["bounds"]] == [False, False]
    assert facts["measured_change"][-1] == [None, None]
    assert (tmp_path / "theory.png").is_file()


def test_run_without_every_step_says_why_there_are_no_bounds(capsys, trained, tmp_path):
    code, out, _ = call(capsys, "run", str(trained), "--out", str(tmp_path / "figure.pdf"))
    assert code == 0
    assert "no bounds: the bounds are for plain full-batch steps" in out
    assert (tmp_path / "figure.pdf").read_bytes().startswith(b"%PDF")


def test_noise_of_a_network_yet_to_learn(capsys, tmp_path):
    code, out, _ = call(
        capsys,
        "noise",
        "digits-bi20",
        "--model",
        "mlp",
        "--examples",
        "120",
        "--draws",
        "20",
        "--out",
        str(tmp_path),
        "--json",
    )
    facts = json.loads(out)
    assert code == 0
    assert facts["title"] == "mlp at initialization on digits-bi20"
    last = [row for row in facts["rows"] if row["batch_size"] == 120]
    assert [row["projection"] for row in last] == pytest.approx([1.0, 1.0])
    assert [row["attenuation_ratio"] for row in last] == [None, None]
    assert (tmp_path / "noise.png").read_bytes().startswith(PNG)


def test_noise_of_many_classes(capsys, tmp_path):
    code, out, _ = call(
        capsys,
        "noise",
        "digits-mul10",
        "--examples",
        "150",
        "--draws",
        "5",
        "--batch-sizes",
        "20,40",
        "--out",
        str(tmp_path),
    )
    assert code == 0
    assert "simple_cnn at initialization" in out


def test_noise_of_a_trained_model(capsys, trained):
    code, out, _ = call(capsys, "noise", str(trained), "--batch-sizes", "8,64", "--draws", "5", "--examples", "100")
    assert code == 0
    assert "mlp trained with pcnsgd for 3 steps" in out
    assert (trained / "noise.png").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check", "--problem", "nowhere"], "--problem"),
        (["check", "--statement", "wrong"], "--statement"),
        (["run", "nowhere"], "nowhere"),
        (["noise", "nowhere"], "nowhere"),
        (["noise", "digits-bi20", "--batch-sizes", "a"], "--batch-sizes"),
        (["noise", "digits-bi20", "--batch-sizes", "1"], "batch_sizes"),
        (["noise", "digits-bi20", "--model", "mlp", "--draws", "2", "--examples", "20", "--out", "x.txt"], "--out"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(capsys, arguments, message):
    code, _, err = call(capsys, *arguments)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


def test_noise_refuses_what_does_not_fit_into_memory(capsys, monkeypatch):
    monkeypatch.setattr("classgrad.cli._theory_source.MOST_BYTES", 10**6)
    code, _, err = call(capsys, "noise", "digits-bi20", "--model", "mlp")
    assert code == 2
    assert "--examples must be at most" in err


def test_noise_needs_two_examples_of_a_class(capsys, tmp_path):
    np.savez(tmp_path / "own.npz", x=np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32), y=[0] * 39 + [1])
    code, _, err = call(capsys, "noise", str(tmp_path / "own.npz"))
    assert code == 2
    assert "class" in err


def test_figures_say_what_to_install(capsys, full_record, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    code, _, err = call(capsys, "run", str(full_record))
    assert code == 2
    assert "pip install 'classgrad[lab]'" in err

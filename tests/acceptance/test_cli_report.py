from __future__ import annotations

import json
import runpy
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from classgrad.cli import _compare, _train, main
from classgrad.dynamics import Recorder, load_run, save_run
from classgrad.report._experiments import problems
from classgrad.report._repeat import commands
from classgrad.training import RunSpec, load_data, train
from classgrad.training._recording import run_meta


@pytest.fixture(scope="module")
def synthetic():
    return SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[1] / "synthetic_runs.py")))


@pytest.fixture
def folder(synthetic, tmp_path):
    """Runs that measured test recall alone, so that the figures are few, in folders whose order is not the paper's."""
    runs = synthetic.demo_runs(seeds=2, algorithms=("sgd", "gd"), steps=40)
    for run in runs[:4]:
        kept = {name: None for name in run.series if name not in ("step", "test/confusion")}
        name = {"gd": "z", "sgd": "a"}[run.meta["algorithm"]]
        save_run(synthetic.changed(run, kept), tmp_path / "runs" / name / f"seed-{run.meta['seed']}" / "run.npz")
    return tmp_path / "runs"


def test_a_folder_of_runs_is_reported_where_it_lies(folder, capsys):
    assert main(["report", str(folder), "--title", "Two of seven"]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0].strip() == "Two of seven"
    rows = [line for line in lines if "gauss-bi20" in line and "│" in line]
    assert [row.split("│")[2].strip() for row in rows] == ["gd", "sgd"]
    assert f"report   {folder / 'report.html'}" in lines
    assert "gauss-bi20: " in out
    assert (folder / "figures" / "gauss-bi20-recall.png").is_file()
    assert "Two of seven" in (folder / "report.html").read_text(encoding="utf-8")


def test_files_are_reported_where_asked_and_as_json(folder, tmp_path, capsys):
    files = [str(path) for path in sorted(folder.rglob("run.npz"))][:3]
    assert main(["report", *files, files[0], "--out", str(tmp_path / "there"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [row["algorithm"] for row in document["results"]] == ["gd", "sgd"]
    assert [len(row["summary"]["seeds"]) for row in document["results"]] == [1, 2]
    assert document["files"][0] == str(tmp_path / "there" / "report.html")
    assert all(Path(file).is_file() for file in document["files"])
    assert document["results"][0]["notes"][0].startswith("One seed")


def test_quiet_says_nothing(folder, tmp_path, capsys):
    assert main(["report", str(folder), "--out", str(tmp_path / "q"), "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


def test_bad_input_is_one_line_and_code_2(folder, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    damaged = tmp_path / "damaged.npz"
    damaged.write_bytes(next(iter(folder.rglob("run.npz"))).read_bytes()[:300])
    (tmp_path / "taken").write_text("")
    first = str(next(iter(folder.rglob("run.npz"))))
    for arguments, said in (
        ([str(tmp_path / "empty")], "no run.npz in the folder"),
        ([str(tmp_path / "nowhere")], "cannot be read"),
        ([str(damaged)], "damaged or no run"),
        ([first, "--out", str(tmp_path / "taken")], "cannot be written"),
        ([], "Missing argument"),
    ):
        assert main(["report", *arguments]) == 2
        out, error = capsys.readouterr()
        assert said in error
        assert len(error.splitlines()) == 1
        assert "report.html" not in out


def test_help_reads_well(capsys):
    assert main(["report", "--help"]) == 0
    out = capsys.readouterr().out
    assert "RUNS..." in out
    assert "classgrad report runs/digits-bi20" in out


def recorded(spec):
    """The record that a run of ``spec`` begins with."""
    data = load_data(spec)
    recorder = Recorder(run_meta(spec, data, torch.device("cpu")))
    recorder.point(0, {"lr": spec.lr})
    return recorder.run()


@pytest.mark.parametrize(
    "more",
    [
        {},
        {
            "batch_size": 32, "grid": (0, 2, 4), "precision": "float64", "every": True, "threads": 1,
            "model_options": {"hidden": [16, 8]}, "optimizer_options": {"momentum": 0.9}, "schedule": "inverse-sqrt",
            "data": "gaussian", "data_options": {"majority": 60, "imbalance": 10.0},
        },
        {"scheduler": "steplr", "scheduler_options": {"step_size": 3}, "optimizer": "adam", "chunk": 100},
    ],
)  # fmt: skip
def test_pasted_commands_ask_for_the_same_runs(monkeypatch, more):
    asked_for = {"data": "digits-bi20", "lr": 0.05, "steps": 4, **more}
    specs = [RunSpec(algorithm=name, seed=seed, **asked_for) for name in ("gd", "sgd") for seed in (0, 1)]
    runs = [recorded(spec) for spec in specs]
    asked = []

    def note(algorithms, source, seeds, options, **_):
        settings = options.settings()
        asked.extend(RunSpec(data=source, algorithm=name, seed=k, **settings) for name in algorithms for k in seeds)

    for module in (_train, _compare):
        monkeypatch.setattr(module, "train_algorithms", note)
    for line in commands(problems(runs)[0]):
        assert main(shlex.split(line)[1:]) == 0
    assert asked == specs


def test_the_record_of_a_real_run_has_a_report(tmp_path, capsys):
    train(RunSpec("digits-bi20", "pcngd", lr=0.05, steps=5, grid="log:4", gradients=False), tmp_path / "run")
    assert main(["report", str(tmp_path)]) == 0
    assert "classgrad train digits-bi20" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert load_run(tmp_path / "run" / "run.npz").meta["algorithm"] == "pcngd"
    assert "pcngd" in capsys.readouterr().out

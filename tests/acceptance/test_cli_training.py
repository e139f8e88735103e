"""``classgrad train``, ``compare`` and ``predict`` as a user types them."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.torch import save_file

from classgrad.cli import main
from classgrad.data import load
from classgrad.dynamics import load_run
from classgrad.training import RunSpec

QUICK = ["--model", "mlp", "--steps", "8", "--workers", "1", "--device", "cpu", "--grid", "log:4", "--batch-size", "32"]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def _quick_figures(monkeypatch, request):
    """Drawing takes seconds; one test looks at the real report."""
    if "real_figures" in request.fixturenames:
        return

    def write(runs, out, *, title, **options):
        paths = [out / "report.html", out / "figures" / "a.png"]
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(title)
        return paths

    monkeypatch.setattr("classgrad.report.write_report", write)


@pytest.fixture
def real_figures():
    """Asks for the figures to be drawn."""


@pytest.fixture
def table(tmp_path):
    """A CSV file with numbers, categories and a rare class."""
    lots = np.random.default_rng(0)
    path = tmp_path / "people.csv"
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["age", "city", "sick"])
        for number in range(120):
            sick = number % 10 == 0
            age = lots.normal(70 if sick else 40, 10)
            rows.writerow([f"{age:.1f}", "rome" if number % 3 else "oslo", "yes" if sick else "no"])
    return path


def test_without_a_terminal_a_line_tells_now_and_then_how_far_runs_are(table, monkeypatch, capsys):
    given = ["train", str(table), "--target", "sick", "--algorithm", "sgd", *QUICK]
    assert main([*given, "--overwrite"]) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("classgrad.cli._live._EVERY", 0.0)
    assert main([*given, "--overwrite"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].endswith("people.csv sgd seed 0: 8 of 8 steps")
    assert main([*given, "--overwrite", "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_train_keeps_record_model_and_report(capsys, tmp_path, real_figures):
    assert main(["train", "digits-bi20", "-a", "pcngd", "--seeds", "2", "--out", "mine", *QUICK]) == 0
    out = capsys.readouterr().out
    assert "pcngd" in out
    assert "report   mine/report.html" in out
    assert "mine/seed-1" in out
    for seed in (0, 1):
        run = load_run(tmp_path / "mine" / f"seed-{seed}" / "run.npz")
        assert (run.meta["seed"], run.meta["status"], run.meta["algorithm"]) == (seed, "finished", "pcngd")
        assert run.steps[-1] == 8
        with safe_open(tmp_path / "mine" / f"seed-{seed}" / "model.safetensors", "pt") as file:
            metadata = file.metadata()
        assert json.loads(metadata["preprocessing"])["classes"] == ["even", "odd"]
    assert (tmp_path / "mine" / "report.html").stat().st_size > 1000
    assert list((tmp_path / "mine").rglob("*.png"))


def test_train_prints_one_json_document(capsys):
    assert main(["train", "digits-bi20", "-a", "sgd", "--json", *QUICK]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["out"] == "runs/digits-bi20/sgd"
    assert found["results"][0]["algorithm"] == "sgd"
    assert 0 <= found["results"][0]["summary"]["peak"]["mean"] <= 1
    assert found["runs"] == [
        {"data": "digits-bi20", "algorithm": "sgd", "seed": 0, "status": "finished", "message": ""}
    ]
    assert all(Path(file).is_file() for file in found["files"])


def test_quiet_prints_nothing(capsys):
    assert main(["train", "digits-bi20", "--quiet", *QUICK]) == 0
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_every_setting_reaches_the_run(capsys):
    settings = ["rule.every=2", "optimizer.momentum=0.5", "scheduler.step_size=3", "model.hidden=[5]", "every=true"]
    arguments = [
        "train",
        "digits-bi20",
        "-a",
        "pcnsgd+r",
        "--optimizer",
        "sgd",
        "--scheduler",
        "StepLR",
        "--lr",
        "0.02",
    ]
    assert main([*arguments, *(part for pair in settings for part in ("--set", pair)), "--seeds", "3,", *QUICK]) == 0
    run = load_run("runs/digits-bi20/pcnsgd+r/seed-3/run.npz")
    spec = run.meta["spec"]
    assert spec["rule_options"] == {"every": 2}
    assert spec["optimizer_options"] == {"momentum": 0.5}
    assert spec["model_options"] == {"hidden": [5]}
    assert run["lr"][0] == 0.02
    assert len(run.every("loss")[0]) == 8
    assert run.meta["algorithm"] == "pcnsgd+r(every=2)"


def test_compare_trains_several_alike(capsys):
    arguments = ["compare", "digits-mul10", "--algorithms", "gd,pcnsgd+o", "--seeds", "1", "--json"]
    assert main([*arguments, *QUICK]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["algorithm"] for row in found["results"]] == ["gd", "pcnsgd+o"]
    assert Path("runs/digits-mul10/compare/gd/seed-0/run.npz").is_file()
    assert Path("runs/digits-mul10/compare/pcnsgd+o/seed-0/model.safetensors").is_file()


def test_all_means_the_seven(capsys):
    quick = [*QUICK, "--steps", "2", "--grid", "all"]
    assert main(["compare", "digits-bi20", "--seeds", "1", "--json", *quick]) == 0
    names = [row["algorithm"] for row in json.loads(capsys.readouterr().out)["results"]]
    assert names == ["gd", "pcngd", "sgd", "pcnsgd", "pcnsgd+r", "sgd+o", "pcnsgd+o"]


def test_a_folder_with_a_run_needs_resume_or_overwrite(capsys):
    arguments = ["train", "digits-bi20", "-a", "gd", *QUICK]
    assert main(arguments) == 0
    first = Path("runs/digits-bi20/gd/seed-0/run.npz").read_bytes()
    assert main(arguments) == 2
    assert "holds a run already" in capsys.readouterr().err
    assert main([*arguments, "--resume"]) == 0
    assert Path("runs/digits-bi20/gd/seed-0/run.npz").read_bytes() == first
    assert main([*arguments, "--lr", "0.2", "--resume"]) == 2
    assert "is of another run" in capsys.readouterr().err
    assert main([*arguments, "--lr", "0.2", "--overwrite"]) == 0
    assert load_run("runs/digits-bi20/gd/seed-0/run.npz").meta["lr"] == 0.2


def test_a_table_is_trained_on_and_predicted(capsys, table):
    assert main(["train", str(table), "--target", "sick", "-a", "pcngd", "--lr", "0.3", *QUICK, "--steps", "60"]) == 0
    model = "runs/people/pcngd/seed-0/model.safetensors"
    assert main(["predict", model, str(table), "--out", "told.csv"]) == 0
    with open("told.csv", newline="") as file:
        told = list(csv.DictReader(file))
    with table.open(newline="") as file:
        truth = [row["sick"] for row in csv.DictReader(file)]
    assert list(told[0]) == ["example", "class", "p(no)", "p(yes)"]
    recalls = [
        np.mean([row["class"] == name for row, true in zip(told, truth, strict=True) if true == name])
        for name in ("no", "yes")
    ]
    assert min(recalls) > 0.7
    assert all(float(row["p(no)"]) + float(row["p(yes)"]) == pytest.approx(1) for row in told)
    capsys.readouterr()
    assert main(["predict", model, str(table), "--json", "--batch-size", "7"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert [row["class"] for row in again] == [row["class"] for row in told]


def test_a_model_predicts_the_test_split_of_a_named_dataset(capsys):
    assert main(["train", "digits-bi20", "-a", "pcnsgd+o", *QUICK, "--precision", "float64"]) == 0
    capsys.readouterr()
    assert main(["predict", "runs/digits-bi20/pcnsgd+o/seed-0", "digits-bi20", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    test = load("digits-bi20").test
    hits = np.array([row["class"] for row in told]) == np.array(["even", "odd"])[test.y]
    recalls = [hits[test.y == label].mean() for label in (0, 1)]
    run = load_run("runs/digits-bi20/pcnsgd+o/seed-0/run.npz")
    assert recalls == pytest.approx(run.recall("test")[-1].tolist())
    assert main(["predict", "runs/digits-bi20/pcnsgd+o/seed-0", "digits-bi20"]) == 0
    shown = capsys.readouterr().out
    assert "... and 250 more" in shown
    assert "even" in shown


def test_tensorboard_logs_every_class(capsys):
    assert main(["train", "digits-bi20", "-a", "gd", "--tensorboard", "--out", "t", *QUICK]) == 0
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logs = EventAccumulator("t/tensorboard/digits-bi20/gd/seed-0")
    logs.Reload()
    run = load_run("t/seed-0/run.npz")
    points = logs.Scalars("recall/test/odd")
    assert [point.step for point in points] == run.steps.tolist()
    assert [point.value for point in points] == pytest.approx(run.recall("test")[:, 1].tolist())
    assert {"loss/train/even", "gradient norm/odd", "macro recall/validation"} <= set(logs.Tags()["scalars"])


def test_a_diverged_run_is_told_and_kept(capsys):
    assert main(["train", "digits-bi20", "-a", "gd", "--lr", "1e38", *QUICK]) == 0
    out = capsys.readouterr().out
    assert "gd, seed 0: diverged at step" in out
    assert load_run("runs/digits-bi20/gd/seed-0/run.npz").meta["status"] == "diverged"
    assert not Path("runs/digits-bi20/gd/seed-0/model.safetensors").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "no-such-data"], "neither the name of a dataset nor a file or folder"),
        (["train", "digits-bi20", "-a", "adam"], "should be one of gd, pcngd"),
        (["train", "digits-bi20", "--lr", "-1"], "`lr` should be a number above 0"),
        (["train", "digits-bi20", "--lr", "fast"], "Invalid value for '--lr'"),
        (["train", "digits-bi20", "--steps", "0"], "`steps`"),
        (["train", "digits-bi20", "--seeds", "none"], "--seeds must be"),
        (["train", "digits-bi20", "--seeds", "1,1"], "--seeds must be"),
        (["train", "digits-bi20", "--grid", "1,999999"], "`grid`"),
        (["train", "digits-bi20", "--set", "colour=red"], "--set must name a setting"),
        (["train", "digits-bi20", "--set", "rule"], "--set must be NAME=VALUE"),
        (["train", "digits-bi20", "--set", "rule.colour=red"], "takes the options: per, eps"),
        (["train", "digits-bi20", "--model", "gpt"], "`model`"),
        (["train", "digits-bi20", "--batch-size", "1", "-a", "pcnsgd"], "batch_size"),
        (["train", "digits-bi20", "--workers", "0"], "`workers`"),
        (["train", "gaussian-bi60", "--channels-last"], "`channels_last` is for images"),
        (["train", "digits-bi20", "--model", "mlp", "--channels-last"], "networks with convolutions"),
        (["compare", "digits-bi20", "-a", "gd,gd"], "--algorithms must be"),
        (["compare", "digits-bi20", "-a", "gd,adam"], "found 'adam'"),
        (["predict", "nowhere", "digits-bi20"], "does not exist"),
        (["predict"], "Missing argument"),
    ],
)
def test_bad_input_is_one_line_and_code_2(arguments, message, capsys):
    extra = ["--steps", "2"] if arguments[0] != "predict" and "--steps" not in arguments else []
    assert main([*arguments, *extra]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("classgrad: ")
    assert captured.err.count("\n") == 1
    assert message in captured.err
    assert not Path("runs").exists() or not list(Path("runs").rglob("run.npz"))


def test_files_that_are_no_models_are_refused(capsys, tmp_path):
    import torch

    (tmp_path / "text.safetensors").write_text("hello")
    save_file({"w": torch.zeros(2)}, tmp_path / "other.safetensors")
    assert main(["train", "digits-bi20", "-a", "gd", *QUICK]) == 0
    good = tmp_path / "runs/digits-bi20/gd/seed-0/model.safetensors"
    with safe_open(good, "pt") as file:
        metadata = file.metadata()
    save_file({"w": torch.zeros(2)}, tmp_path / "weights.safetensors", metadata)
    (tmp_path / "cut.safetensors").write_bytes(good.read_bytes()[:-100])
    for name, message in (
        ("text", "no safetensors file"),
        ("cut", "no safetensors file"),
        ("other", "is no model of classgrad"),
        ("weights", "do not fit the network"),
    ):
        capsys.readouterr()
        assert main(["predict", f"{name}.safetensors", "digits-bi20"]) == 2
        captured = capsys.readouterr().err
        assert message in captured
        assert captured.count("\n") == 1


@pytest.mark.parametrize(
    "options", [{"hidden": [10**9]}, {"hidden": [1] * 5000}, {"hidden": 10**30}, {"hidden": 5}, 5, None]
)
def test_a_model_said_to_be_larger_than_its_file_is_not_made(capsys, tmp_path, options):
    import torch

    metadata = {
        "format": "classgrad.model/1",
        "spec": json.dumps({**json.loads(RunSpec("digits-bi20", "gd", lr=1.0, steps=1).to_json()), "model": "mlp"}),
        "preprocessing": load("digits-bi20").preprocessing.to_json(),
    }
    metadata["spec"] = json.dumps({**json.loads(metadata["spec"]), "model_options": options})
    save_file({"w": torch.zeros(64)}, tmp_path / "large.safetensors", metadata)
    assert main(["predict", "large.safetensors", "digits-bi20"]) == 2
    captured = capsys.readouterr().err
    assert captured.startswith("classgrad: ")
    assert captured.count("\n") == 1


def test_the_help_of_every_command_reads_well(capsys):
    for command in ("train", "compare", "predict", "demo"):
        assert main([command, "--help"]) == 0
        shown = capsys.readouterr().out
        assert "Usage: classgrad" in shown
        assert "--json" in shown


def test_ctrl_c_exits_with_130_and_resume_finishes(tmp_path):
    """The real command: two workers, a signal to the whole group, then --resume."""
    arguments = [
        "train", "digits-bi20", "-a", "pcnsgd+r", "--seeds", "2", "--steps", "500", "--model", "mlp",
        "--grid", "log:5", "--out", "here", "--set", "gradients=false", "--workers", "2", "--device", "cpu",
    ]  # fmt: skip
    command = [sys.executable, "-c", "import sys; from classgrad.cli import main; sys.exit(main(sys.argv[1:]))"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*command, *arguments], stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )
    checkpoints = [tmp_path / "here" / f"seed-{seed}" / "checkpoint.pt" for seed in (0, 1)]
    deadline = time.monotonic() + 90
    while not all(path.exists() for path in checkpoints) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=90)
    assert process.returncode == 130
    assert errors.startswith("classgrad: stopped")
    assert errors.count("\n") == 1
    assert main([*arguments, "--resume", "--quiet", "--workers", "1"]) == 0
    for seed in (0, 1):
        run = load_run(tmp_path / "here" / f"seed-{seed}" / "run.npz")
        assert (run.meta["status"], run.steps[-1]) == ("finished", 500)


def test_tensorboard_stays_in_its_folder(capsys, table):
    given = ["train", str(table.absolute()), "--target", "sick", "-a", "gd", "--tensorboard", "--out", "t", *QUICK]
    assert main(given) == 0
    assert [path.parent.as_posix() for path in Path("t").rglob("events*")] == [f"t/tensorboard/{table.stem}/gd/seed-0"]


def test_a_model_remembers_how_the_columns_were_divided(capsys):
    rows = "".join(f"{i};{i % 7};{'yes' if i % 3 else 'no'}\n" for i in range(60))
    Path("semi.csv").write_text("a;b;y\n" + rows)
    given = ["train", "semi.csv", "--target", "y", "-o", "delimiter=;", "-a", "gd", "--out", "t", *QUICK]
    assert main(given) == 0
    assert main(["predict", "t/seed-0", "semi.csv"]) == 0
    assert main(["data", "show", "semi.csv", "--target", "y", "-o", "delimiter=;;"]) == 2
    assert capsys.readouterr().err == "classgrad: delimiter must be one character, found ';;'\n"

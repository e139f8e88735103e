"""The scripts in benchmarks/ still run: as small as they go, in a process of their own, as a reader would call them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def called(script: str, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / f"{script}.py"), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)


@pytest.mark.parametrize(
    ("script", "arguments", "shown"),
    [
        (
            "step_cost",
            "--models table --layouts 2x2 --contenders fused,through,split,by-hand --seconds 0.01",
            "| table | 2 × 2 | 0.",
        ),
        (
            "step_cost",
            "--models mlp --layouts 3x2 --contenders fused,joint --seconds 0.01 --fresh",
            "| mlp | 3 × 2 |",
        ),
        (
            "step_cost",
            "--models mlp --layouts 2x2 --contenders fused,autogram --seconds 0.01 --limit 1e-9",
            " | – | – |",
        ),
        ("lazy_norms", "price --models mlp --layouts 2x2 --seconds 0.05 --refresh 1,2", "| mlp | 2 × 2 |"),
        (
            "lazy_norms",
            "truth --problems digits-bi20 --algorithms pcnsgd+o --ways 2 --refresh 1,3 --seeds 1 --steps 6",
            "| 3 | 2 | 33 % |",
        ),
        ("loop_cost", "--turns 1", "pcnsgd+o"),
        ("sampler_rate", "--examples 500 --classes 5 --batch-size 20 --batches 3", "BalancedBatches"),
        (
            "scale",
            "--json out.json --models mlp --only batch,samplers --seconds 0.01 --most-batch 32 --most-examples 1e5",
            "BalancedBatches",
        ),
        ("demo_rates", "--help", "--algorithms"),
        ("loop_rate", "--help", "--part"),
        ("first_run", "--help", "--packed"),
    ],
    ids=lambda value: value.split()[0] if isinstance(value, str) else None,
)
def test_runs(script: str, arguments: str, shown: str, tmp_path: Path) -> None:
    made = called(script, *arguments.split(), folder=tmp_path)
    assert made.returncode == 0, made.stderr
    assert shown in made.stdout, made.stdout


@pytest.mark.parametrize("script", ["kernels", "plain_variants", "step_trace"])
def test_without_a_gpu_it_says_so(script: str, tmp_path: Path) -> None:
    made = called(script, folder=tmp_path)
    assert (made.returncode, made.stderr) == (2, "This benchmark needs a CUDA device.\n")


@pytest.mark.parametrize(
    ("script", "arguments", "shown"),
    [
        ("step_cost", "--models nope", "'nope' is none of simple_cnn"),
        ("step_cost", "--layouts 2x0", "'2x0' is not classes x examples of each"),
        ("step_cost", "--contenders fused,fast", "'fast' is none of plain"),
        ("step_cost", "--contenders fused,vmap --fresh", "labels that change are not for contenders vmap"),
        ("step_cost", "--contenders fused --fresh --grouped", "labels that change are not for --grouped"),
        ("scale", "--json out.json --only depth", "'depth' is none of classes"),
        ("lazy_norms", "price --layouts 2y3", "'2y3' is not classes x examples of each"),
        ("lazy_norms", "truth --algorithms adam", "'adam' is none of gd"),
    ],
)
def test_what_it_does_not_know_ends_in_one_line(script: str, arguments: str, shown: str, tmp_path: Path) -> None:
    made = called(script, *arguments.split(), folder=tmp_path)
    assert made.returncode == 2
    assert shown in made.stderr.splitlines()[-1]
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif("CLASSGRAD_DATA" not in os.environ, reason="CLASSGRAD_DATA names no folder with CIFAR")
def test_first_run_goes_from_the_grid_to_the_tables(tmp_path: Path) -> None:
    shared = [
        "--out",
        "runs",
        "--data-dir",
        os.environ["CLASSGRAD_DATA"],
        "--algorithms",
        "sgd",
        "--protocols",
        "paper",
    ]
    shared += ["--scale", "0.001", "--rates", "0.01,0.1", "--seeds", "2", "--workers", "1", "--device", "cpu"]
    for stage in ("grid", "runs", "times"):
        assert called("first_run", stage, *shared, folder=tmp_path).returncode == 0
    assert called("first_run", "pack", "--out", "runs", "--packed", "all.tar", folder=tmp_path).returncode == 0
    tables = called("first_run", "tables", "--packed", "all.tar", "--figures", "figures", folder=tmp_path)
    assert "| sgd | paper |" in tables.stdout
    assert any((tmp_path / "figures").iterdir())

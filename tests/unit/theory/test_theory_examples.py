"""The examples and the code of docs/theory.md run and say what they promise."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[3]

SAYS = {
    "tightness": [
        r"= \+0.01: a step of 0.0001 changes its loss by -",
        r"= -0.01: .* changes its loss by \+",
        r"0.99 times .* by -",
        r"1.01 times .* by \+",
    ],
    "conflict": [r"gd: .* -\S+ \(majority\), \+\S+ \(minority\)", r"pcngd: .* -\S+ \(majority\), -\S+ \(minority\)"],
    "logistic": [r"GD: the minority's loss is 0.087, 0.105", "for the minority: False"],
    "least_squares": [r"assumed ω_t ≥ 0.3; the smallest along the run is 0.[3-9]", "T = 2000"],
    "many_classes": [
        r"27 under GD, 3 under PCNGD",
        r"105°.*changes its loss by -",
        r"115°.*changes its loss by \+",
        r"printed: .*True, True, True, True.* 1\.\d+",
        r"corrected: .*True, True, True, False.* 0\.\d+",
    ],
}


@pytest.mark.parametrize("name", SAYS)
def test_example(name, capsys):
    runpy.run_path(str(ROOT / "examples" / f"theory_{name}.py"))
    printed = capsys.readouterr().out
    for pattern in SAYS[name]:
        assert re.search(pattern, printed), printed


def test_the_code_on_the_theory_page():
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "theory.md").read_text(), re.DOTALL)
    names: dict = {}
    exec(code, names)
    assert not names["bound"].violated.any()
    assert torch.equal(names["bound"].met, torch.ones(100, 2, dtype=torch.bool))


def test_the_theory_page_names_real_functions():
    import classgrad.theory

    page = (ROOT / "docs" / "theory.md").read_text()
    linked = set(re.findall(r"#classgrad\.theory\.(\w+)", page))
    assert linked <= set(classgrad.theory.__all__)
    assert all((ROOT / "docs" / figure).is_file() for figure in re.findall(r"\]\((figures/[^)]+)\)", page))

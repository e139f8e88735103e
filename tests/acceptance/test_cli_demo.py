"""``classgrad demo`` on fewer steps than the real one, which takes about a minute."""

import json

import pytest

from classgrad.cli import _demo, main
from classgrad.dynamics import load_run
from classgrad.training import SEVEN


@pytest.fixture(autouse=True)
def _shorter(monkeypatch, tmp_path):
    monkeypatch.setattr(_demo, "STEPS", {"digits-bi20": 3, "digits-mul10": 3})
    monkeypatch.setattr(_demo, "SEEDS", (0,))
    monkeypatch.chdir(tmp_path)


def test_the_demo_prints_table_and_sentences_and_writes_report_and_figures(tmp_path, capsys):
    assert main(["demo", "--out", "shown", "--workers", "1"]) == 0
    out = capsys.readouterr().out
    for name in SEVEN:
        assert out.count(f" {name} ") >= 2
    assert "digits-bi20: " in out
    assert "digits-mul10: " in out
    assert "shown/report.html" in out
    assert "shown/figures" in out
    assert (tmp_path / "shown" / "report.html").is_file()
    assert len(list((tmp_path / "shown" / "figures").glob("*.png"))) >= 8
    record = load_run(tmp_path / "shown" / "digits-mul10" / "pcnsgd+o" / "seed-0" / "run.npz")
    assert record.meta["lr"] == _demo.RATES["digits-mul10"]["pcnsgd+o"]


def test_the_demo_can_be_run_again_and_resumed(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        "classgrad.report.write_report", lambda runs, out, **options: [out / "report.html", out / "a.png"]
    )
    monkeypatch.setattr(_demo, "RATES", {"digits-bi20": {"gd": 0.3, "pcngd": 1.0}})
    assert main(["demo", "--workers", "1", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    record = tmp_path / "classgrad-demo" / "gd" / "seed-0" / "run.npz"
    stamp = record.stat().st_mtime_ns
    assert main(["demo", "--workers", "1", "--json", "--resume"]) == 0
    assert record.stat().st_mtime_ns == stamp
    assert json.loads(capsys.readouterr().out) == first
    assert main(["demo", "--workers", "1", "--quiet"]) == 0
    assert record.stat().st_mtime_ns > stamp


def test_every_algorithm_has_a_rate_on_both_problems():
    assert {data: tuple(rates) for data, rates in _demo.RATES.items()} == {"digits-bi20": SEVEN, "digits-mul10": SEVEN}

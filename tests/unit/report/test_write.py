from __future__ import annotations

import os

import pytest

from classgrad import InputError
from classgrad.report import write_report


def test_the_page_comes_first_and_links_to_the_figures(binary, tmp_path):
    paths = write_report(binary, tmp_path / "new" / "folder", title="T", figures=("png",))
    out = tmp_path / "new" / "folder"
    assert paths[0] == out / "report.html"
    assert sorted(path for path in out.rglob("*") if path.is_file()) == sorted(paths)
    page = paths[0].read_text(encoding="utf-8")
    for path in paths[1:]:
        assert f'href="{path.relative_to(out).as_posix()}"' in page


def test_no_figures_if_none_are_asked_for(binary, tmp_path):
    assert write_report(binary, tmp_path, figures=()) == [tmp_path / "report.html"]
    assert "figures as files" not in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_an_old_report_is_kept_until_the_new_one_is_whole(binary, tmp_path, monkeypatch):
    (path,) = write_report(binary, tmp_path, figures=())
    old = path.read_bytes()
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(InputError, match=f"cannot be written to {tmp_path}: No space left on device"):
        write_report(binary[:3], tmp_path, figures=())
    assert path.read_bytes() == old
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_in_the_way_is_named(binary, tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        write_report(binary, tmp_path / "out", figures=())

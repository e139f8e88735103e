from __future__ import annotations

import sys
from pathlib import Path

import pytest

from classgrad.data._places import Where, user_cache


@pytest.mark.parametrize(
    ("platform", "variable", "default"),
    [
        ("linux", "XDG_CACHE_HOME", ".cache"),
        ("darwin", "XDG_CACHE_HOME", "Library/Caches"),
        ("win32", "LOCALAPPDATA", "AppData/Local"),
    ],
)
def test_the_cache_of_each_system(
    platform: str, variable: str, default: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.delenv(variable, raising=False)
    assert user_cache() == tmp_path / default / "classgrad"
    monkeypatch.setenv(variable, str(tmp_path / "elsewhere"))
    assert user_cache() == tmp_path / "elsewhere" / "classgrad"


def test_the_order_of_the_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert Where().folders() == [user_cache()]
    monkeypatch.setenv("CLASSGRAD_DATA", str(tmp_path))
    assert Where(Path("mine")).folders() == [Path("mine"), tmp_path, user_cache()]

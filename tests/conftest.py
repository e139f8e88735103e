"""What all tests share."""

import pytest


@pytest.fixture(autouse=True)
def no_terminal_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let output be as wide as it is: xdist tells its workers of a terminal of 80 columns that is not there."""
    monkeypatch.delenv("COLUMNS", raising=False)

from __future__ import annotations

import pytest

from classgrad.cli._data import _few


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["150", "150"], "150 each"),
        (["0"] * 100, "none"),
        (["5", "4"], "5, 4"),
        ([str(n) for n in range(50, 0, -1)], "50, 49, 48, ..., 1 (50)"),
    ],
)
def test_a_cell_of_the_table_stays_short(texts: list[str], expected: str) -> None:
    assert _few(texts) == expected

"""The report as files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from classgrad.dynamics import Run


def write_report(runs: Sequence[Run], out: Path, *, title: str = "Learning under class imbalance") -> list[Path]:
    """Write ``report.html`` and the figures as PNG and PDF under ``out``, each file whole or not at all.

    Returns the paths, the HTML file first.
    """
    raise NotImplementedError

"""Downloads that are checked and whole, or do not happen."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from classgrad._errors import InputError
from classgrad._lab import lab_module


class _Bar:
    """A rich progress bar with the few methods pooch calls."""

    def __init__(self, name: str) -> None:
        rich_progress = lab_module("rich.progress", "a progress bar")
        console = lab_module("rich.console", "a progress bar").Console(stderr=True)
        self._progress: Any = rich_progress.Progress(
            "{task.description}",
            rich_progress.BarColumn(),
            rich_progress.DownloadColumn(),
            rich_progress.TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task(f"downloading {name}", total=None)
        self._progress.start()
        self.total = 0  # pooch sets it when it knows

    def update(self, amount: int) -> None:
        """So many more bytes have come."""
        self._progress.update(self._task, total=self.total or None, advance=amount)

    def reset(self) -> None:
        """Count from the start again, as pooch does before its last update."""
        self._progress.reset(self._task)

    def close(self) -> None:
        """Remove the bar."""
        self._progress.stop()


def download(url: str, path: Path, *, md5: str, progress: bool, instead: str) -> Path:
    """Download ``url`` to ``path`` if it has the right checksum; ``instead`` says what to do when it fails."""
    pooch = lab_module("pooch", f"downloading {path.name}")
    pooch.get_logger().setLevel(logging.WARNING)
    bar = _Bar(path.name) if progress else None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        pooch.retrieve(
            url,
            known_hash=f"md5:{md5}",
            fname=path.name,
            path=path.parent,
            downloader=pooch.HTTPDownloader(progressbar=bar or False, timeout=30),
        )
    except OSError as error:  # no network, no such page, no space
        reason = error.strerror or type(error).__name__
        raise InputError(f"{path.name} could not be downloaded from {url} ({reason}): {instead}") from error
    except ValueError as error:
        raise InputError(f"what came from {url} has a wrong checksum and was thrown away: {instead}") from error
    finally:
        if bar is not None:
            bar.close()
    return path

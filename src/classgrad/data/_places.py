"""Where data is looked for on this machine."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "CLASSGRAD_DATA"

_CACHES = {
    "win32": ("LOCALAPPDATA", "AppData/Local"),
    "darwin": ("XDG_CACHE_HOME", "Library/Caches"),
}


def user_cache() -> Path:
    """Return the user's cache folder for classgrad, which need not exist."""
    variable, default = _CACHES.get(sys.platform, ("XDG_CACHE_HOME", ".cache"))
    base = os.environ.get(variable)
    return (Path(base) if base else Path.home() / default) / "classgrad"


@dataclass(frozen=True)
class Where:
    """The folder the user named, if any, and whether a download may draw a progress bar."""

    data_dir: Path | None = None
    progress: bool = True

    def folders(self) -> list[Path]:
        """Every folder to look in: the named one, ``CLASSGRAD_DATA``, the user's cache."""
        variable = os.environ.get(VARIABLE)
        named = [self.data_dir, Path(variable).expanduser() if variable else None]
        return [folder for folder in named if folder is not None] + [user_cache()]

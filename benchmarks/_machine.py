"""The machine a benchmark runs on, and the rows measured on it."""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path
from typing import Any

import torch

Row = dict[str, Any]


def need_gpu() -> None:
    """End with one line where there is no CUDA device."""
    if not torch.cuda.is_available():
        print("This benchmark needs a CUDA device.", file=sys.stderr)
        raise SystemExit(2)


def machine_name(device: str) -> str:
    """Return the GPU's name, or the processor's."""
    return torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()


class Rows:
    """The rows measured so far, in a file if one is given: it is up to date after every row."""

    def __init__(self, path: Path | None, machine: str) -> None:
        self._path = path
        self.content: dict[str, Any] = {"machine": machine, "torch": torch.__version__, "rows": []}
        if path is not None and path.exists():
            self.content = json.loads(path.read_text())
        if (self.content["machine"], self.content["torch"]) != (machine, torch.__version__):
            raise SystemExit(f"{path} is of another machine or torch ({self.content['machine']}): give another file")

    def find(self, key: Row) -> Row | None:
        alike = (row for row in self.content["rows"] if all(row.get(name) == value for name, value in key.items()))
        return next(alike, None)

    def add(self, row: Row) -> None:
        self.content["rows"].append(row)
        if self._path is None:
            return
        partial_file = self._path.with_suffix(".tmp")
        partial_file.write_text(json.dumps(self.content, indent=1))
        partial_file.replace(self._path)

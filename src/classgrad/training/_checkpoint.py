"""The state of a run as a file: whole or absent, plain values only, and of this run or refused."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import torch

from classgrad._errors import InputError
from classgrad._files import write_atomically

FORMAT = "classgrad.checkpoint/1"


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write ``state``, made of tensors and plain values; where that fails, the file that was there stays."""
    buffer = io.BytesIO()  # torch turns a full disk into an error that does not say so
    torch.save({"format": FORMAT, **state}, buffer)

    def write(part: Path) -> None:
        part.write_bytes(buffer.getbuffer())

    try:
        write_atomically(path, write)
    except OSError as error:
        kept = "; the one written before is kept" if path.is_file() else ""
        raise InputError(f"Checkpoint {path} cannot be written: {error.strerror or error}{kept}.") from error


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read what :func:`save_checkpoint` wrote, without running anything that a file may contain."""
    try:
        content = io.BytesIO(path.read_bytes())
    except OSError as error:
        raise InputError(f"Checkpoint {path} cannot be read: {error.strerror or error}.") from error
    try:
        state = torch.load(content, map_location="cpu", weights_only=True)
    except Exception as error:  # of a file that is cut off, of another kind or hostile torch raises nearly anything
        reason = " ".join(str(error).split())[:120]
        raise InputError(
            f"Checkpoint {path} is damaged or none of classgrad's ({reason}); move it away to start the run again."
        ) from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise InputError(f"Checkpoint {path} is none of classgrad's (it does not say {FORMAT}).")
    return state


def remove_leftovers(folder: Path) -> None:
    """Remove the unfinished temporary files that a killed process left in a run's folder."""
    for part in folder.glob(".*.part"):
        part.unlink(missing_ok=True)

"""The folder of one run: its record and its checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from classgrad._errors import InputError
from classgrad.dynamics import Run, load_run, save_run
from classgrad.training._checkpoint import load_checkpoint, remove_leftovers, save_checkpoint

RECORD = "run.npz"
CHECKPOINT = "checkpoint.pt"
MODEL_FILE = "model.safetensors"
"""The weights, where somebody writes them there after the run."""


class RunFolder:
    """The folder of one run."""

    def __init__(self, path: Path, identity: str) -> None:
        self.path = path
        self._identity = identity
        self._outdated = self._began = False

    def enter(self, *, resume: bool, overwrite: bool) -> Run | None:
        """Check what is there; the record if the run is done already and is to be resumed."""
        record, checkpoint = self.path / RECORD, self.path / CHECKPOINT
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"Parameter `out_dir` should be a folder. Found the file {self.path}.")
        if not record.exists() and not checkpoint.exists():
            remove_leftovers(self.path)
            return None
        if overwrite:
            self._outdated = True  # what is there stays until there is something in its place
            return None
        if not resume:
            raise InputError(
                f"Folder {self.path} holds a run already; resume it (--resume), overwrite it (--overwrite) or give "
                "another folder."
            )
        remove_leftovers(self.path)
        if checkpoint.exists():
            self.load()  # refuses a damaged one, and that of another run
        if not record.exists():
            return None
        run = load_run(record)
        if checkpoint.exists() and run.meta.get("identity") != self._identity:
            return None  # of a run that this one was about to overwrite when it was stopped
        self._check(run.meta.get("identity"), record)
        return None if run.meta["status"] == "interrupted" else run

    def record(self, run: Run) -> None:
        """Write the record."""
        save_run(run, self.path / RECORD)
        self._remove(CHECKPOINT, MODEL_FILE)

    def save(self, state: dict[str, Any]) -> None:
        """Write the checkpoint."""
        if self._outdated and state["step"] == 0 and not self._began:
            self._began = True  # settings may yet turn out to be bad at the first update
            return
        save_checkpoint(self.path / CHECKPOINT, {"identity": self._identity, **state})
        self._remove(RECORD, MODEL_FILE)

    def load(self) -> dict[str, Any] | None:
        """Read the checkpoint, if there is one; that of another run is refused."""
        path = self.path / CHECKPOINT
        if not path.exists():
            return None
        state = load_checkpoint(path)
        self._check(state.get("identity"), path)
        return state

    def _remove(self, *names: str) -> None:
        """Remove what is left of the run that was overwritten, now that there is something in its place."""
        if self._outdated:
            for name in names:
                (self.path / name).unlink(missing_ok=True)
            self._outdated = False

    def _check(self, identity: object, file: Path) -> None:
        if identity != self._identity:
            raise InputError(
                f"{file} is of another run ({identity}, this one is {self._identity}): settings or data differ; give "
                "those it was made with, or another folder."
            )

"""Runs as files: one .npz archive of plain arrays with the settings as a JSON string; never pickled."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import numpy as np

from classgrad._errors import InputError
from classgrad._files import check_archive, write_atomically
from classgrad.dynamics._json import dump_json
from classgrad.dynamics._run import Array, Run

FORMAT = "classgrad.run"
VERSION = 1

_HEADER = "header"
# What reading a damaged or hostile archive can raise, down to an array header that asks for more memory than there is.


def save_run(run: Run, path: str | Path) -> None:
    """Write a run to one file, whole or not at all; the same run gives the same bytes."""
    header = dump_json({"format": FORMAT, "version": VERSION, "meta": run.meta})
    if _HEADER in run.series:
        raise InputError(f"Series {_HEADER!r} should have another name: the file keeps the settings there.")

    def write(part: Path) -> None:
        with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
            _write_array(archive, _HEADER, np.array(header))
            for name in sorted(run.series):
                _write_array(archive, name, run.series[name])

    try:
        write_atomically(Path(path), write)
    except OSError as error:
        raise InputError(f"Run file {path} cannot be written: {error.strerror or error}.") from error


def load_run(path: str | Path) -> Run:
    """Read a run that :func:`save_run` wrote; whatever else the file is, the error says so in one line."""
    try:
        arrays = _read_arrays(Path(path))
        header = json.loads(str(arrays.pop(_HEADER)))
    except OSError as error:
        raise InputError(f"Run file {path} cannot be read: {error.strerror or error}.") from error
    except Exception as error:  # damaged zip files raise nearly anything
        raise InputError(f"Run file {path} is damaged or no run of classgrad ({_one_line(error)}).") from error
    if not isinstance(header, dict) or header.get("format") != FORMAT or not isinstance(header.get("meta"), dict):
        raise InputError(f"Run file {path} is no run of classgrad (its header does not say {FORMAT}).")
    if header.get("version") != VERSION:
        raise InputError(
            f"Run file {path} has format version {header.get('version')!r}, this classgrad reads version {VERSION}."
        )
    try:
        return Run(header["meta"], arrays)
    except InputError as error:
        raise InputError(f"Run file {path} does not fit together: {error}") from error


def _write_array(archive: zipfile.ZipFile, name: str, values: Array) -> None:
    member = zipfile.ZipInfo(f"{name}.npy")  # without a date, so that equal runs are equal files
    member.compress_type = zipfile.ZIP_DEFLATED
    with archive.open(member, "w", force_zip64=True) as file:
        np.lib.format.write_array(file, values, allow_pickle=False)


def _read_arrays(path: Path) -> dict[str, Array]:
    arrays = {}
    with zipfile.ZipFile(path) as archive:
        check_archive(archive)
        for name in archive.namelist():
            content = io.BytesIO(archive.read(name))  # the whole member, so that its checksum is verified
            arrays[name.removesuffix(".npy")] = np.lib.format.read_array(content, allow_pickle=False)
    return arrays


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]

"""Files that are whole or absent, whenever the process dies."""

from __future__ import annotations

import errno
import os
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Let ``write`` fill a temporary file beside ``path``, then put it in place in one rename.

    The content reaches the disk before the rename, so a crash at any moment leaves the old file or the new one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    except OSError as error:
        raise _about(error, path) from None
    os.close(handle)
    part = Path(name)
    try:
        write(part)
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        part.chmod(0o666 & ~umask)  # mkstemp makes private files; give this one the usual mode
        part.replace(path)
    except BaseException as error:
        part.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename == name:
            raise _about(error, path) from error
        raise


def check_archive(archive: zipfile.ZipFile) -> None:
    """Refuse what numpy would not write: a few bytes of bzip2 or lzma may hold gigabytes."""
    for member in archive.infolist():
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{member.filename!r} is compressed in a way that numpy does not use")


def _about(error: OSError, path: Path) -> OSError:
    """Return the error as one about the file that was to be written, not the one it was to be made of."""
    return type(error)(error.errno, error.strerror, str(path))

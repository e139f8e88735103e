"""Finding, checking and reading CIFAR on this machine, or downloading it."""

from __future__ import annotations

import hashlib
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from classgrad._errors import InputError
from classgrad.data._cifar_layouts import CifarSet, File, Layout, Rows
from classgrad.data._download import download
from classgrad.data._places import Where
from classgrad.data._pool import Pool

_LARGEST_MEMBER = 256 * 2**20  # the largest official file has 161 MB


def read_cifar(wanted: CifarSet, where: Where) -> Pool:
    """All 60,000 images of a set, from whichever official form is found first, else downloaded."""
    layout, place = _find(wanted, where.folders()) or _downloaded(wanted, where)
    contents = _from_folder(layout, place) if place.is_dir() else _from_archive(layout, place)
    train, test = (
        np.concatenate([_rows(wanted, layout, file, contents[file.name], place) for file in files])
        for files in (layout.train, layout.test)
    )
    return _pool(wanted, train, test)


def _find(wanted: CifarSet, folders: Sequence[Path]) -> tuple[Layout, Path] | None:
    incomplete: list[str] = []
    for folder in folders:
        for layout in wanted.layouts:
            place = folder / layout.folder
            missing = [file.name for file in (*layout.train, *layout.test) if not (place / file.name).is_file()]
            if not missing:
                return layout, place
            if place.is_dir():
                incomplete.append(f"{place} lacks {', '.join(missing)}")
            if (folder / layout.archive).is_file():
                return layout, folder / layout.archive
    if incomplete:
        raise InputError(f"{incomplete[0]}: complete it, or delete it to have {wanted.name} downloaded")
    return None


def _downloaded(wanted: CifarSet, where: Where) -> tuple[Layout, Path]:
    layout, folder = wanted.layouts[0], where.folders()[0]
    path = download(
        wanted.url + layout.archive,
        folder / layout.archive,
        md5=layout.archive_checksum,
        progress=where.progress,
        instead=f"put {layout.archive} (or its folder {layout.folder}/) into {folder}, or name the folder that has "
        f"it with data_dir or CLASSGRAD_DATA",
    )
    return layout, path


def _from_folder(layout: Layout, folder: Path) -> dict[str, bytes]:
    return {file.name: (folder / file.name).read_bytes() for file in (*layout.train, *layout.test)}


def _from_archive(layout: Layout, archive: Path) -> dict[str, bytes]:
    """Read the wanted files without writing anything: no name in the archive can lead anywhere."""
    digest = hashlib.md5(usedforsecurity=False)
    with archive.open("rb") as stream:
        while chunk := stream.read(2**20):
            digest.update(chunk)
    _check(digest.hexdigest(), layout.archive_checksum, archive)
    wanted = {f"{layout.folder}/{file.name}": file.name for file in (*layout.train, *layout.test)}
    contents: dict[str, bytes] = {}
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                if member.name in wanted and member.isreg() and member.size <= _LARGEST_MEMBER:
                    content = tar.extractfile(member)
                    assert content is not None  # only links and folders have none
                    contents[wanted[member.name]] = content.read()
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise InputError(f"{archive} cannot be read as a tar.gz archive: {error}") from error
    missing = sorted(set(wanted.values()) - set(contents))
    if missing:
        raise InputError(f"{archive} holds no file {layout.folder}/{missing[0]}: delete it and download it again")
    return contents


def _rows(wanted: CifarSet, layout: Layout, file: File, content: bytes, place: Path) -> Rows:
    origin = place / file.name
    algorithm = {32: hashlib.md5, 40: hashlib.sha1}[len(file.checksum)]
    _check(algorithm(content, usedforsecurity=False).hexdigest(), file.checksum, origin)
    rows = layout.parse(content, wanted.labels, str(origin))
    if len(rows) != file.rows:
        raise InputError(f"{origin} must hold {file.rows} images, found {len(rows)}")
    if rows[:, wanted.labels - 1].max() >= len(wanted.classes):
        raise InputError(f"{origin} must hold labels below {len(wanted.classes)}, found larger ones")
    return rows


def _check(found: str, official: str, path: Path) -> None:
    if found != official:
        raise InputError(
            f"{path} is not the official file (checksum {found}, must be {official}): it is truncated or altered, "
            f"delete it and download it again"
        )


def _pool(wanted: CifarSet, train: Rows, test: Rows) -> Pool:
    rows = np.concatenate([train, test])
    images = torch.from_numpy(rows[:, wanted.labels :]).reshape(len(rows), 3, 32, 32)
    labels = torch.from_numpy(rows[:, wanted.labels - 1].astype(np.int64))
    positions = [torch.nonzero(labels == label).flatten() for label in range(len(wanted.classes))]
    return Pool(
        classes=wanted.classes,
        images=images,
        train=tuple(where[where < len(train)] for where in positions),
        held_out=tuple(where[where >= len(train)] for where in positions),
        source=hashlib.sha256(rows.data).hexdigest(),
    )

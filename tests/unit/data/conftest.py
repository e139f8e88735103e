"""Small files in CIFAR's official layouts, and a machine without data."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import struct
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from classgrad.data._cifar_layouts import CIFAR, CifarSet, File, Layout
from classgrad.data._pool import Pool

ROWS = 20


@pytest.fixture(autouse=True)
def _bare_machine(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if request.node.get_closest_marker("cifar") is None:
        monkeypatch.delenv("CLASSGRAD_DATA", raising=False)


@pytest.fixture
def kit() -> ModuleType:
    """The functions of this file."""
    return sys.modules[__name__]


def py2_pickle(batch: dict[bytes, object]) -> bytes:
    """Write a batch as Python 2 and its numpy wrote CIFAR's files: protocol 2, byte strings, three names."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value if len(value) < 256 else b"T" + struct.pack("<i", len(value)) + value

    def whole(value: int) -> bytes:
        if 0 <= value < 256:
            return b"K" + bytes([value])
        return b"M" + struct.pack("<H", value) if 0 <= value < 65536 else b"J" + struct.pack("<i", value)

    def array(value: np.ndarray) -> bytes:
        dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNN" + whole(-1) * 2 + b"K\x00tb"
        start = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        shape = whole(value.shape[0]) + whole(value.shape[1]) + b"\x86"
        fortran = value.flags["F_CONTIGUOUS"] and not value.flags["C_CONTIGUOUS"]
        content = text(value.tobytes(order="A"))
        return start + b"(K\x01" + shape + dtype + (b"\x88" if fortran else b"\x89") + content + b"tb"

    def anything(value: object) -> bytes:
        if isinstance(value, np.ndarray):
            return array(value)
        if isinstance(value, list):
            return b"](" + b"".join(map(anything, value)) + b"e"
        return text(value) if isinstance(value, bytes) else whole(value)

    items = b"".join(text(key) + anything(value) for key, value in batch.items())
    return b"\x80\x02}(" + items + b"u."


def random_rows(wanted: CifarSet, seed: int, rows: int = ROWS) -> np.ndarray:
    """Rows of the binary form with every fine label in turn."""
    generator = np.random.default_rng(seed)
    content = generator.integers(0, 256, (rows, wanted.labels + 3072), dtype=np.uint8)
    content[:, wanted.labels - 1] = np.arange(rows) % len(wanted.classes)
    return content


def file_content(wanted: CifarSet, layout: Layout, rows: np.ndarray) -> bytes:
    """One file of a layout."""
    if layout.folder.endswith(("bin", "binary")):
        return rows.tobytes()
    data = np.asfortranarray(rows[:, wanted.labels :]) if wanted.labels == 2 else rows[:, wanted.labels :].copy()
    keys = [b"labels"] if wanted.labels == 1 else [b"coarse_labels", b"fine_labels"]
    labels = {key: rows[:, position].tolist() for position, key in enumerate(keys)}
    return py2_pickle({b"batch_label": b"training batch 1 of 5", **labels, b"data": data, b"filenames": [b"a.png"]})


def tar_of(members: dict[str, bytes | tarfile.TarInfo]) -> bytes:
    """A tar.gz of files, or of the special members given as they are."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, content in members.items():
            if isinstance(content, tarfile.TarInfo):
                tar.addfile(content)
            else:
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def with_checksums(layout: Layout, contents: dict[str, bytes], archive: bytes = b"") -> Layout:
    """The layout with the checksums and sizes of these contents for official ones."""

    def official(file: File) -> File:
        algorithm = hashlib.md5 if len(file.checksum) == 32 else hashlib.sha1
        return File(file.name, algorithm(contents[file.name]).hexdigest(), ROWS)

    return dataclasses.replace(
        layout,
        archive_checksum=hashlib.md5(archive).hexdigest(),
        train=tuple(map(official, layout.train)),
        test=tuple(map(official, layout.test)),
    )


@dataclasses.dataclass
class TinyCifar:
    """A small set on the disk: the set with its own checksums, the folder it is in, and its rows."""

    wanted: CifarSet
    folder: Path
    rows: np.ndarray


@pytest.fixture
def tiny_cifar(tmp_path: Path) -> Callable[..., TinyCifar]:
    """Write a set of 20 rows a file in one layout (0 binary, 1 python), as a folder or an archive."""

    def write(name: str, layout_number: int, *, archive: bool, folder: Path | None = None) -> TinyCifar:
        wanted, place = CIFAR[name], folder or tmp_path / "data"
        layout = wanted.layouts[layout_number]
        files = (*layout.train, *layout.test)
        rows = [random_rows(wanted, seed) for seed in range(len(files))]
        contents = {f.name: file_content(wanted, layout, r) for f, r in zip(files, rows, strict=True)}
        packed = tar_of({f"{layout.folder}/{name}": content for name, content in contents.items()})
        checked = with_checksums(layout, contents, packed)
        place.mkdir(parents=True, exist_ok=True)
        if archive:
            (place / layout.archive).write_bytes(packed)
        else:
            (place / layout.folder).mkdir()
            for file_name, content in contents.items():
                (place / layout.folder / file_name).write_bytes(content)
        layouts = tuple(checked if n == layout_number else other for n, other in enumerate(wanted.layouts))
        return TinyCifar(dataclasses.replace(wanted, layouts=layouts), place, np.concatenate(rows))

    return write


@pytest.fixture
def pixel_cifar(monkeypatch: pytest.MonkeyPatch) -> dict[str, Pool]:
    """CIFAR with the real numbers of images a class, each of a single random pixel, classes in a shuffled order."""
    import torch

    pools = {}
    for name, per_class in (("cifar10", 5000), ("cifar100", 500)):
        classes = CIFAR[name].classes
        generator = torch.Generator().manual_seed(len(classes))
        labels = torch.cat(
            [
                torch.arange(len(classes)).repeat(n)[torch.randperm(len(classes) * n, generator=generator)]
                for n in (per_class, per_class // 5)
            ]
        )
        positions = [torch.nonzero(labels == label).flatten() for label in range(len(classes))]
        pools[name] = Pool(
            classes=classes,
            images=torch.randint(0, 256, (60000, 3, 1, 1), dtype=torch.uint8, generator=generator),
            train=tuple(where[where < 50000] for where in positions),
            held_out=tuple(where[where >= 50000] for where in positions),
            source=name,
        )
    monkeypatch.setattr("classgrad.data._recipes.read_cifar", lambda wanted, where: pools[wanted.name])
    return pools

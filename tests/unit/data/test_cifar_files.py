from __future__ import annotations

import dataclasses
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from classgrad import InputError
from classgrad.data._cifar_files import read_cifar
from classgrad.data._cifar_layouts import CIFAR, CifarSet, parse_python
from classgrad.data._places import Where

LAYOUTS = pytest.mark.parametrize(
    ("layout", "archive"), [(0, False), (0, True), (1, False), (1, True)], ids=["bin", "bin.tar", "py", "py.tar"]
)
SETS = pytest.mark.parametrize("name", ["cifar10", "cifar100"])


def official_file_count(name: str) -> tuple[int, int]:
    return {"cifar10": (5, 1), "cifar100": (1, 1)}[name]


@SETS
@LAYOUTS
def test_every_layout_gives_the_same_images(
    tiny_cifar: Callable, kit: ModuleType, name: str, layout: int, archive: bool
) -> None:
    tiny = tiny_cifar(name, layout, archive=archive)
    pool = read_cifar(tiny.wanted, Where(tiny.folder))
    labels = tiny.wanted.labels
    np.testing.assert_array_equal(pool.images.numpy(), tiny.rows[:, labels:].reshape(-1, 3, 32, 32))
    train_files, test_files = official_file_count(name)
    assert len(pool.images) == (train_files + test_files) * kit.ROWS
    first_test = train_files * kit.ROWS
    for label in range(len(pool.classes)):
        expected = np.flatnonzero(tiny.rows[:, labels - 1] == label)
        assert pool.train[label].tolist() == [i for i in expected if i < first_test]
        assert pool.held_out[label].tolist() == [i for i in expected if i >= first_test]


@SETS
def test_the_source_checksum_does_not_depend_on_the_layout(tiny_cifar: Callable, tmp_path: Path, name: str) -> None:
    sources = set()
    for number, (layout, archive) in enumerate([(0, False), (0, True), (1, False), (1, True)]):
        tiny = tiny_cifar(name, layout, archive=archive, folder=tmp_path / str(number))
        sources.add(read_cifar(tiny.wanted, Where(tiny.folder)).source)
    assert len(sources) == 1


def test_the_official_tables_are_complete() -> None:
    for wanted in CIFAR.values():
        for layout in wanted.layouts:
            files = (*layout.train, *layout.test)
            assert sum(file.rows for file in layout.train) == 50000
            assert sum(file.rows for file in layout.test) == 10000
            assert all(len(file.checksum) in (32, 40) for file in files)
            assert len({file.checksum for file in files}) == len(files)
    assert [len(wanted.classes) for wanted in CIFAR.values()] == [10, 100]


def test_the_official_checksums_are_in_force(tiny_cifar: Callable) -> None:
    tiny = tiny_cifar("cifar10", 0, archive=False)
    with pytest.raises(
        InputError, match=r"data_batch_1.bin is not the official file .*aadd24acce27.*download it again"
    ):
        read_cifar(CIFAR["cifar10"], Where(tiny.folder))


@SETS
@LAYOUTS
def test_a_truncated_file_is_refused(tiny_cifar: Callable, name: str, layout: int, archive: bool) -> None:
    tiny = tiny_cifar(name, layout, archive=archive)
    shape = tiny.wanted.layouts[layout]
    path = tiny.folder / shape.archive if archive else tiny.folder / shape.folder / shape.test[0].name
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match=rf"{path.name} is not the official file .* truncated or altered"):
        read_cifar(tiny.wanted, Where(tiny.folder))


@LAYOUTS
def test_an_altered_file_is_refused(tiny_cifar: Callable, layout: int, archive: bool) -> None:
    tiny = tiny_cifar("cifar10", layout, archive=archive)
    shape = tiny.wanted.layouts[layout]
    path = tiny.folder / shape.archive if archive else tiny.folder / shape.folder / shape.train[2].name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"is not the official file"):
        read_cifar(tiny.wanted, Where(tiny.folder))


def with_archive(kit: ModuleType, folder: Path, members: dict[str, object]) -> CifarSet:
    """CIFAR-100 whose archive has these members and the checksum for them; every file checksum is right too."""
    wanted = CIFAR["cifar100"]
    layout = wanted.layouts[0]
    files = (*layout.train, *layout.test)
    contents = {file.name: kit.random_rows(wanted, seed).tobytes() for seed, file in enumerate(files)}
    packed = kit.tar_of({f"{layout.folder}/{name}": content for name, content in contents.items()} | members)
    folder.mkdir(exist_ok=True)
    (folder / layout.archive).write_bytes(packed)
    return dataclasses.replace(wanted, layouts=(kit.with_checksums(layout, contents, packed),))


def special(name: str, kind: bytes, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def test_an_archive_writes_nothing(kit: ModuleType, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    members = {
        "../escaped": b"x",
        "/tmp/classgrad-absolute-escape": b"x",
        "cifar-100-binary/../../escaped-too": b"x",
        "link": special("cifar-100-binary/link", tarfile.SYMTYPE, "/etc/passwd"),
        "device": special("cifar-100-binary/device", tarfile.CHRTYPE),
    }
    wanted = with_archive(kit, folder, members)
    before = sorted(tmp_path.rglob("*"))
    assert len(read_cifar(wanted, Where(folder)).images) == 2 * kit.ROWS
    assert sorted(tmp_path.rglob("*")) == before
    assert not Path("/tmp/classgrad-absolute-escape").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE])
def test_a_link_in_place_of_a_file_is_refused(kit: ModuleType, tmp_path: Path, kind: bytes) -> None:
    name = "cifar-100-binary/test.bin"
    wanted = with_archive(kit, tmp_path / "data", {name: special(name, kind, "/etc/passwd")})
    with pytest.raises(InputError, match=r"holds no file cifar-100-binary/test.bin: delete it"):
        read_cifar(wanted, Where(tmp_path / "data"))


def test_an_archive_that_is_none_is_refused(kit: ModuleType, tmp_path: Path) -> None:
    layout = CIFAR["cifar100"].layouts[0]
    wanted = with_archive(kit, tmp_path / "data", {})
    content = (tmp_path / "data" / layout.archive).read_bytes()[:-2000]
    (tmp_path / "data" / layout.archive).write_bytes(content)
    contents = {file.name: b"" for file in (*layout.train, *layout.test)}
    wanted = dataclasses.replace(wanted, layouts=(kit.with_checksums(layout, contents, content),))
    with pytest.raises(InputError, match=r"cannot be read as a tar.gz archive"):
        read_cifar(wanted, Where(tmp_path / "data"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows.tobytes()[:-1], "truncated"),
        (lambda rows: rows[:-1].tobytes(), "must hold 20 images, found 19"),
        (lambda rows: np.where(np.arange(3073) == 0, 10, rows).astype(np.uint8).tobytes(), "labels below 10"),
    ],
)
def test_content_is_checked_beyond_its_checksum(
    kit: ModuleType, tiny_cifar: Callable, change: Callable[[np.ndarray], bytes], message: str
) -> None:
    tiny = tiny_cifar("cifar10", 0, archive=False)
    layout = tiny.wanted.layouts[0]
    place = tiny.folder / layout.folder
    (place / "test_batch.bin").write_bytes(change(kit.random_rows(tiny.wanted, 0)))
    contents = {path.name: path.read_bytes() for path in place.iterdir()}
    wanted = dataclasses.replace(tiny.wanted, layouts=(kit.with_checksums(layout, contents),))
    with pytest.raises(InputError, match=message):
        read_cifar(wanted, Where(tiny.folder))


ROW = np.zeros((2, 3072), dtype=np.uint8)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({b"labels": [1, 2]}, "no array 'data'"),
        ({b"labels": [1, 2], b"data": [1, 2]}, "no array 'data'"),
        ({b"labels": [1, 2], b"data": ROW[:, :5].copy()}, "no array 'data'"),
        ({b"data": ROW}, "no label of 0..255 for each of its 2 images"),
        ({b"labels": [1], b"data": ROW}, "no label"),
        ({b"labels": [1, 300], b"data": ROW}, "no label"),
        ({b"labels": [1, b"x"], b"data": ROW}, "no label"),
    ],
)
def test_a_pickle_that_is_not_a_cifar_file_is_refused(kit: ModuleType, batch: dict, message: str) -> None:
    with pytest.raises(InputError, match=rf"^batch holds {message}"):
        parse_python(kit.py2_pickle(batch), 1, "batch")


def test_a_pickle_of_a_list_is_refused() -> None:
    with pytest.raises(InputError, match="no array 'data'"):
        parse_python(b"].", 1, "batch")


def test_an_incomplete_folder_is_named(tiny_cifar: Callable) -> None:
    tiny = tiny_cifar("cifar10", 0, archive=False)
    (tiny.folder / "cifar-10-batches-bin" / "data_batch_3.bin").unlink()
    with pytest.raises(InputError, match=r"cifar-10-batches-bin lacks data_batch_3.bin: complete it, or delete it"):
        read_cifar(tiny.wanted, Where(tiny.folder))


def test_an_archive_beside_an_incomplete_folder_is_used(tiny_cifar: Callable) -> None:
    tiny = tiny_cifar("cifar10", 0, archive=True)
    (tiny.folder / "cifar-10-batches-bin").mkdir()
    assert len(read_cifar(tiny.wanted, Where(tiny.folder)).images) == len(tiny.rows)


def test_the_named_folder_comes_before_the_variable_and_the_cache(
    tiny_cifar: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = tiny_cifar("cifar100", 0, archive=False, folder=tmp_path / "cache" / "classgrad")
    assert read_cifar(tiny.wanted, Where(None)).source == read_cifar(tiny.wanted, Where(tmp_path / "none")).source
    broken = tmp_path / "variable"
    (broken / "cifar-100-binary").mkdir(parents=True)
    for name in ("train.bin", "test.bin"):
        (broken / "cifar-100-binary" / name).write_bytes(b"broken")
    monkeypatch.setenv("CLASSGRAD_DATA", str(broken))
    with pytest.raises(InputError, match=r"variable.*not the official file"):
        read_cifar(tiny.wanted, Where(None))
    named = tiny_cifar("cifar100", 1, archive=False, folder=tmp_path / "named")
    assert len(read_cifar(named.wanted, Where(tmp_path / "named")).images) == len(named.rows)

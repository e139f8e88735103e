import io
import json
import zipfile
from dataclasses import replace

import numpy as np
import pytest

from classgrad._errors import InputError
from classgrad.dynamics import _store, load_run, save_run


@pytest.fixture
def saved(full_run, tmp_path):
    path = tmp_path / "run.npz"
    save_run(full_run, path)
    return path


def write_archive(path, **arrays):
    with zipfile.ZipFile(path, "w") as archive:
        for name, values in arrays.items():
            content = io.BytesIO()
            np.save(content, values, allow_pickle=True)
            archive.writestr(f"{name}.npy", content.getvalue())


def header(**changes):
    return np.array(json.dumps({"format": "classgrad.run", "version": 1, "meta": {}} | changes))


def test_a_run_survives_the_file(full_run, saved):
    loaded = load_run(saved)
    assert loaded.meta == full_run.meta
    assert loaded.differences(full_run) == []
    assert set(loaded.series) == set(full_run.series)


def test_equal_runs_are_equal_files_whatever_the_order_of_their_series(full_run, saved, tmp_path):
    turned = replace(full_run, series=dict(reversed(full_run.series.items())))
    save_run(turned, tmp_path / "turned.npz")
    assert (tmp_path / "turned.npz").read_bytes() == saved.read_bytes()


def test_numpy_alone_reads_the_file(full_run, saved):
    with np.load(saved, allow_pickle=False) as archive:
        assert json.loads(archive["header"].item())["meta"] == full_run.meta
        np.testing.assert_array_equal(archive["train/loss"], full_run["train/loss"])


def test_arrays_that_are_not_contiguous_are_kept(full_run, tmp_path):
    turned = replace(full_run, series={**full_run.series, "gram": full_run["gram"][::-1].transpose(0, 2, 1)})
    save_run(turned, tmp_path / "run.npz")
    assert load_run(tmp_path / "run.npz").identical(turned)


def test_folders_are_made_and_names_need_no_suffix(full_run, tmp_path):
    save_run(full_run, tmp_path / "a" / "b" / "run")
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["run"]
    assert load_run(str(tmp_path / "a" / "b" / "run")).identical(full_run)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(full_run, saved, monkeypatch):
    before = saved.read_bytes()

    def full_disk(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_store, "_write_array", full_disk)
    with pytest.raises(InputError, match=r"run.npz cannot be written: No space left on device"):
        save_run(full_run, saved)
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def test_a_path_through_a_file_is_refused(full_run, saved):
    with pytest.raises(InputError, match="cannot be written"):
        save_run(full_run, saved / "inside.npz")


@pytest.mark.parametrize("value", [np.int64(1), float("nan"), (1, 2), {1: "a"}, {1, 2}])
def test_settings_without_an_exact_json_form_are_refused(full_run, tmp_path, value):
    with pytest.raises(InputError, match="`meta` should be plain JSON"):
        save_run(replace(full_run, meta={**full_run.meta, "extra": value}), tmp_path / "run.npz")
    assert not list(tmp_path.iterdir())


def test_a_series_may_not_take_the_place_of_the_settings(full_run, tmp_path):
    series = {**full_run.series, "header": np.ones(3)}
    with pytest.raises(InputError, match="'header' should have another name"):
        save_run(replace(full_run, series=series), tmp_path / "run.npz")


def test_a_missing_file_and_a_folder(tmp_path):
    with pytest.raises(InputError, match=r"none\.npz cannot be read: No such file"):
        load_run(tmp_path / "none.npz")
    with pytest.raises(InputError, match=r"cannot be read: Is a directory"):
        load_run(tmp_path)


def test_a_file_cut_anywhere_is_refused_in_one_line(saved, tmp_path):
    whole = saved.read_bytes()
    cut = tmp_path / "cut.npz"
    for length in range(0, len(whole), 97):
        cut.write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"cut\.npz is damaged or no run of classgrad") as caught:
            load_run(cut)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"step,loss\n0,1\n", b"PK\x03\x04", b"\x93NUMPY", b"\x00" * 1000])
def test_foreign_files_are_refused(tmp_path, content):
    path = tmp_path / "foreign.npz"
    path.write_bytes(content)
    with pytest.raises(InputError, match="is damaged or no run of classgrad"):
        load_run(path)


def test_pickled_objects_are_never_loaded(tmp_path):
    path = tmp_path / "evil.npz"
    write_archive(path, header=header(), step=np.array([{"a": 1}], dtype=object))
    with pytest.raises(InputError, match="Object arrays cannot be loaded"):
        load_run(path)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"step": np.arange(3)}, "is damaged or no run of classgrad"),
        ({"header": np.array("not json")}, "is damaged or no run of classgrad"),
        ({"header": np.array("[1]")}, "its header does not say classgrad.run"),
        ({"header": np.arange(3)}, "is damaged or no run of classgrad"),
        ({"header": header(format="other")}, "its header does not say classgrad.run"),
        ({"header": header(meta=[])}, "its header does not say classgrad.run"),
        ({"header": header(version=2)}, "has format version 2, this classgrad reads version 1"),
        ({"header": header()}, r"archive\.npz does not fit together: .*names of the classes"),
    ],
)
def test_archives_that_are_no_runs_are_refused(tmp_path, arrays, message):
    path = tmp_path / "archive.npz"
    write_archive(path, **arrays)
    with pytest.raises(InputError, match=message):
        load_run(path)


def test_an_archive_member_that_is_no_array_is_refused(saved):
    with zipfile.ZipFile(saved, "a") as archive:
        archive.writestr("notes.txt", "hello")
    with pytest.raises(InputError, match="is damaged or no run of classgrad"):
        load_run(saved)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_few_bytes_that_hold_gigabytes_are_not_unpacked(saved, method, monkeypatch):
    with zipfile.ZipFile(saved, "a", method) as archive:
        archive.writestr("zeros.npy", bytes(10**6))
    monkeypatch.setattr(zipfile.ZipFile, "read", lambda *_: pytest.fail("unpacked"))
    with pytest.raises(InputError, match=r"is damaged .*'zeros.npy' is compressed in a way that numpy does not use"):
        load_run(saved)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"counts": [2**70, 1]}, "whole numbers from 0 on"),
        ({"seed": "a"}, "'seed'"),
        ({"spec": 5}, "'spec'"),
        ({"spec": {"data": "x"}}, "'spec'"),
        ({"classes": ["a", "\ud800"]}, "lone surrogates"),
    ],
)
def test_settings_that_nothing_can_be_made_of_are_refused(full_run, changes, message):
    with pytest.raises(InputError, match=message):
        replace(full_run, meta={**full_run.meta, **changes})

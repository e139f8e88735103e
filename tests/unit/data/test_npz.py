from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from classgrad import InputError
from classgrad.data import load, load_new

Y = np.arange(40) % 2


def saved(tmp_path: Path, **arrays: np.ndarray) -> Path:
    path = tmp_path / "mine.npz"
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int32, np.uint8, bool])
def test_features(tmp_path: Path, dtype: type) -> None:
    x = np.random.default_rng(0).integers(0, 2, (40, 3)).astype(dtype)
    data = load(saved(tmp_path, x=x, y=Y))
    assert (data.name, data.classes) == ("mine", ("0", "1"))
    assert data.counts == {"train": (14, 14), "validation": (3, 3), "test": (3, 3)}
    for split in data.splits.values():
        assert split.x.dtype == torch.float32
        np.testing.assert_array_equal(split.x.numpy(), x[split.indices.numpy()].astype(np.float32))
        np.testing.assert_array_equal(split.y.numpy(), Y[split.indices.numpy()])


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((40, 5, 6), (1, 5, 6)),
        ((40, 5, 6, 3), (3, 5, 6)),
        ((40, 5, 6, 1), (1, 5, 6)),
        ((40, 3, 5, 6), (3, 5, 6)),
        ((40, 1, 5, 3), (1, 5, 3)),
    ],
)
def test_images(tmp_path: Path, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    data = load(saved(tmp_path, x=x, y=Y))
    assert data.preprocessing.shape == expected
    moved = x[:, None] if x.ndim == 3 else x if shape[1:] == expected else np.moveaxis(x, 3, 1)
    np.testing.assert_array_equal(data.train.x.numpy(), moved[data.train.indices.numpy()])
    new = load_new(tmp_path / "mine.npz", data.preprocessing)
    np.testing.assert_array_equal(new.x.numpy(), moved)
    assert new.names[:2] == ("1", "2")
    assert len(new) == 40


def test_names_of_classes(tmp_path: Path) -> None:
    y = np.array([0, 1, 1, 1] * 10)
    named = load(saved(tmp_path, x=np.eye(40), y=y, classes=np.array(["rare", "common"])))
    assert named.classes == ("common", "rare")
    texts = load(saved(tmp_path, x=np.eye(40), y=np.array([b"r", b"c", b"c", b"c"] * 10)))
    assert texts.classes == ("c", "r")


def test_the_fingerprint_follows_the_content(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(40, 3))
    first = load(saved(tmp_path, x=x, y=Y)).fingerprint
    assert load(saved(tmp_path, y=Y, x=x)).fingerprint == first
    assert load(saved(tmp_path, x=x, y=Y), seed=1).fingerprint != first
    assert load(saved(tmp_path, x=x + 1, y=Y)).fingerprint != first


def test_no_validation(tmp_path: Path) -> None:
    data = load(saved(tmp_path, x=np.eye(40), y=Y), validation=0, test=0.5)
    assert data.splits.keys() == {"train", "test"}
    assert len(data.validation) == 0
    assert data.counts["validation"] == (0, 0)


BAD = {
    "no x": ({"y": Y}, r"no array 'x', found y: name the examples x, the labels y"),
    "no y": ({"x": np.eye(40)}, r"no array 'y', found x"),
    "nothing": ({}, r"no array 'x', found none"),
    "0 rows": (
        {"x": np.empty((0, 3)), "y": Y[:0]},
        r"x must hold at least one example, found an array of shape \(0, 3\)",
    ),
    "a number": ({"x": np.array(3), "y": Y}, r"x must hold at least one example"),
    "lengths": ({"x": np.eye(39), "y": Y}, r"x and y must be of one length, found 39 and 40"),
    "missing": (
        {"x": np.where(np.eye(40) > 0, np.nan, 1), "y": Y},
        r"40 values are missing, infinite or too large for single precision, the first in row 1",
    ),
    "infinite": ({"x": np.full((40, 2), 1e39), "y": Y}, r"80 values are missing, infinite or too large"),
    "one axis": ({"x": np.ones(40), "y": Y}, r"x must be features \(examples, features\) or uint8 images"),
    "no features": ({"x": np.ones((40, 0)), "y": Y}, r"x must be features"),
    "texts": ({"x": np.full((40, 2), "a"), "y": Y}, r"x must be features"),
    "float images": ({"x": np.ones((40, 4, 4)), "y": Y}, r"images must be uint8 \(0..255\), found float64"),
    "channels": ({"x": np.ones((40, 4, 4, 2), np.uint8), "y": Y}, r"images must have 1 or 3 channels"),
    "no pixels": ({"x": np.ones((40, 3, 0, 4), np.uint8), "y": Y}, r"at least one pixel"),
    "labels": ({"x": np.eye(40), "y": np.eye(40)}, r"y must be one label an example, found an array of shape"),
    "names": ({"x": np.eye(40), "y": Y, "classes": np.array(["a", "b", "c"])}, r"y must hold every number of 0..2"),
    "names twice": (
        {"x": np.eye(40), "y": np.arange(40) % 3, "classes": np.array(["cat", "dog", "cat"])},
        r"classes must be different names, found 'cat' more than once",
    ),
    "bytes": ({"x": np.eye(40), "y": np.array([b"\xff", b"a"] * 20)}, r"must be UTF-8"),
    "named texts": (
        {"x": np.eye(40), "y": Y.astype(str), "classes": np.array(["a", "b"])},
        r"y must hold every number",
    ),
    "one example": ({"x": np.eye(40), "y": (np.arange(40) == 0)}, r"class 'True' has 1 examples, too few"),
}


@pytest.mark.parametrize(("arrays", "message"), BAD.values(), ids=BAD.keys())
def test_bad_arrays(tmp_path: Path, arrays: dict, message: str) -> None:
    with pytest.raises(InputError, match=rf"mine.npz: .*{message}|{message}"):
        load(saved(tmp_path, **arrays))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04broken", b"hello", pickle.dumps([1])])
def test_a_file_that_is_no_npz(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "mine.npz"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"mine.npz cannot be read as an .npz file of plain arrays"):
        load(path)


def test_a_single_array(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    with path.open("wb") as file:
        np.save(file, np.eye(3))
    with pytest.raises(InputError, match="holds a single array, use numpy"):
        load(path)


def test_objects_are_not_unpickled(tmp_path: Path) -> None:
    objects = np.empty(40, dtype=object)
    objects[:] = "a"
    with pytest.raises(InputError, match="Object arrays cannot be loaded"):
        load(saved(tmp_path, x=np.eye(40), y=objects))


def test_new_arrays_must_fit(tmp_path: Path) -> None:
    preprocessing = load(saved(tmp_path, x=np.eye(40), y=Y)).preprocessing
    with pytest.raises(InputError, match=r"the model needs examples of shape \(40,\), found \(39,\)"):
        load_new(saved(tmp_path, x=np.eye(39)), preprocessing)
    (tmp_path / "other.csv").write_text("a\n1\n")
    with pytest.raises(InputError, match=r"other.csv does not fit the model, which needs an .npz$"):
        load_new(tmp_path / "other.csv", preprocessing)
    with pytest.raises(InputError, match=r"none.npz does not exist"):
        load_new(tmp_path / "none.npz", preprocessing)

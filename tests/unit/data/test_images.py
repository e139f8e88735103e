from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import classgrad.data._images as images_module
from classgrad import InputError
from classgrad.data import Preprocessing, load, load_new
from classgrad.data._images import read_images


def picture(seed: int, height: int = 6, width: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def folder_of(tmp_path: Path, counts: dict[str, int], suffix: str = ".png", mode: str = "RGB") -> Path:
    folder = tmp_path / "pets"
    seed = 0
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for i in range(count):
            Image.fromarray(picture(seed)).convert(mode).save(folder / name / f"{i:03}{suffix}")
            seed += 1
    return folder


def test_one_folder_a_class(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {"cat": 4, "dog": 10})
    (folder / "dog" / "notes.txt").write_text("not an image")
    (folder / "dog" / ".hidden.png").write_bytes(b"not an image")
    (folder / ".git").mkdir()
    data = load(folder)
    assert (data.name, data.classes) == ("pets", ("dog", "cat"))
    assert data.counts == {"train": (6, 2), "validation": (2, 1), "test": (2, 1)}
    assert data.preprocessing.shape == (3, 6, 5)
    assert not data.preprocessing.resize
    expected = np.stack([picture(seed).transpose(2, 0, 1) for seed in range(14)])
    for split in data.splits.values():
        np.testing.assert_array_equal(split.x.numpy(), expected[split.indices.numpy()])
        assert [data.classes[y] for y in split.y] == ["cat" if i < 4 else "dog" for i in split.indices]


@pytest.mark.parametrize(
    ("mode", "suffix", "channels"),
    [("L", ".png", 1), ("1", ".png", 1), ("LA", ".png", 1), ("RGBA", ".png", 3), ("P", ".gif", 3), ("CMYK", ".jpg", 3)],
)
def test_modes(tmp_path: Path, mode: str, suffix: str, channels: int) -> None:
    data = load(folder_of(tmp_path, {"a": 3, "b": 3}, suffix, mode))
    assert data.preprocessing.shape == (channels, 6, 5)


def test_grey_among_colour_becomes_colour(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {"a": 3, "b": 3})
    grey = picture(99)[:, :, 0]
    Image.fromarray(grey).save(folder / "a" / "000.png")
    data = load(folder)
    found = np.concatenate([split.x[split.indices == 0].numpy() for split in data.splits.values()])
    np.testing.assert_array_equal(found[0], np.stack([grey] * 3))


def test_resizing(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {"a": 3, "b": 3})
    flat = np.full((12, 20, 3), 77, dtype=np.uint8)
    Image.fromarray(flat).save(folder / "b" / "000.png")
    data = load(folder, image_size=[4, 3])
    assert data.preprocessing.shape == (3, 4, 3)
    assert data.preprocessing.resize
    found = np.concatenate([split.x[split.indices == 3].numpy() for split in data.splits.values()])
    assert (found == 77).all()
    assert load(folder, image_size=8).preprocessing.shape == (3, 8, 8)


def test_pictures_taken_on_their_side_are_turned(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {"a": 3, "b": 3})
    lying = Image.fromarray(np.rot90(picture(0), 1).copy())  # stored turned, marked "rotate 90 degrees clockwise"
    exif = Image.Exif()
    exif[0x0112] = 6
    lying.save(folder / "a" / "000.png", exif=exif)
    data = load(folder)
    found = np.concatenate([split.x[split.indices == 0].numpy() for split in data.splits.values()])
    np.testing.assert_array_equal(found[0], picture(0).transpose(2, 0, 1))


def test_images_are_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of(tmp_path, {"a": 3, "b": 3})
    first = load(folder)
    decodings = []
    original = images_module._decode
    monkeypatch.setattr(images_module, "_decode", lambda *args: decodings.append(1) or original(*args))
    assert load(folder).fingerprint == first.fingerprint
    assert decodings == []
    assert load(folder, image_size=3).fingerprint != first.fingerprint
    Image.fromarray(picture(50)).save(folder / "a" / "000.png")
    assert load(folder).fingerprint != first.fingerprint
    assert len(decodings) == 2
    for cached in (tmp_path / "cache" / "classgrad" / "images").iterdir():
        cached.write_bytes(b"damaged")
    load(folder)
    assert len(decodings) == 3


def test_without_a_cache_it_only_takes_longer(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {"a": 3, "b": 3})
    (tmp_path / "cache").write_text("a file where the cache folder should be")
    assert load(folder).counts["train"] == (1, 1)


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({}, r"pets must hold one folder of images for each of at least 2 classes, found 0"),
        ({"a": 3}, r"for each of at least 2 classes, found 1"),
        ({"a": 3, "b": 0}, r"b holds no images \(.bmp, .*\): add some or remove the folder"),
        ({"a": 3, "b": 1}, r"class 'b' has 1 examples, too few for the 3 splits"),
    ],
)
def test_folders_that_are_no_classes(tmp_path: Path, counts: dict[str, int], message: str) -> None:
    (tmp_path / "pets").mkdir()
    with pytest.raises(InputError, match=message):
        load(folder_of(tmp_path, counts))


DAMAGES = {
    "empty": (".png", lambda content: b""),
    "text": (".jpg", lambda content: b"hello"),
    "header of a PNG": (".png", lambda content: content[:40]),
    "header of a JPEG": (".jpg", lambda content: content[:-60]),
    "half": (".png", lambda content: content[: len(content) // 2]),
    "changed": (".png", lambda content: content[:60] + bytes(40) + content[100:]),
}


@pytest.mark.parametrize(("suffix", "damage"), DAMAGES.values(), ids=DAMAGES.keys())
def test_damaged_images_are_named(tmp_path: Path, damage: Callable[[bytes], bytes], suffix: str) -> None:
    folder = folder_of(tmp_path, {"a": 3, "b": 3}, suffix)
    path = folder / "b" / f"001{suffix}"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match=rf"^{path} cannot be read \(.+\): replace or remove what is damaged$"):
        load(folder)
    assert not (tmp_path / "cache").exists()
    (folder / "a" / f"002{suffix}").write_bytes(b"x")
    with pytest.raises(InputError, match=r"2 images cannot be read, the first is|002.* cannot be read"):
        load(folder)


def test_mixed_sizes_are_named(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {"a": 3, "b": 3})
    odd = folder / "b" / "002.png"
    Image.fromarray(picture(0, 9, 9)).save(odd)
    with pytest.raises(InputError, match=rf"images have 2 sizes, 5 of 6 are 6x5 but not {odd}: give image_size"):
        load(folder)
    assert not (tmp_path / "cache").exists()


def test_sixteen_bits_are_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {"a": 3, "b": 3})
    Image.fromarray(np.arange(30, dtype=np.uint16).reshape(6, 5)).save(folder / "a" / "000.png")
    with pytest.raises(InputError, match=r"000.png cannot be read \(images of mode I;16 are not read, convert it"):
        load(folder)


def test_a_picture_of_absurd_size_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of(tmp_path, {"a": 3, "b": 3})
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20)
    with pytest.raises(InputError, match=r"6 images cannot be read, .*\(Image size \(30 pixels\) exceeds limit"):
        load(folder)


def test_more_than_the_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images_module, "_LARGEST", 100)
    with pytest.raises(InputError, match=r"6 images of 6x5 would take 0 GiB: give image_size to make them smaller"):
        load(folder_of(tmp_path, {"a": 3, "b": 3}))


@pytest.mark.parametrize("image_size", [0, [3], [3, 4, 5], "big", 2.5])
def test_bad_sizes(tmp_path: Path, image_size: object) -> None:
    with pytest.raises(InputError, match="image_size must be"):
        load(folder_of(tmp_path, {"a": 3, "b": 3}), image_size=image_size)


def test_without_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of(tmp_path, {"a": 3, "b": 3})
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(InputError, match=r"reading images needs the package PIL.*pip install 'classgrad\[lab\]'"):
        load(folder)


def test_new_images(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {"a": 3, "b": 3})
    preprocessing = Preprocessing.from_json(load(folder).preprocessing.to_json())
    everything = load_new(folder, preprocessing)
    assert everything.names == tuple(str(Path(c) / f"00{i}.png") for c in "ab" for i in range(3))
    np.testing.assert_array_equal(everything.x[4].numpy(), picture(4).transpose(2, 0, 1))
    one = load_new(folder / "b" / "001.png", preprocessing)
    assert one.names == ("001.png",)
    np.testing.assert_array_equal(one.x[0].numpy(), picture(4).transpose(2, 0, 1))


def test_new_images_of_another_size_or_colour(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {"a": 3, "b": 3})
    exact, resized = load(folder).preprocessing, load(folder, image_size=4).preprocessing
    new = tmp_path / "new.png"
    Image.fromarray(picture(0, 8, 8)[:, :, 0]).save(new)
    with pytest.raises(InputError, match=r"the model needs images of 6x5, found 8x8: resize them"):
        load_new(new, exact)
    assert load_new(new, resized).x.shape == (1, 3, 4, 4)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"empty holds no images"):
        load_new(tmp_path / "empty", exact)
    (tmp_path / "new.csv").write_text("a\n1\n")
    with pytest.raises(InputError, match=r"which needs an image, a folder of images or an .npz$"):
        load_new(tmp_path / "new.csv", exact)


def test_images_outside_a_folder_of_classes_keep_their_order(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {"a": 2})
    paths = sorted((folder / "a").iterdir())
    found = read_images(paths[::-1], folder, size=None)
    np.testing.assert_array_equal(found[0], picture(1).transpose(2, 0, 1))

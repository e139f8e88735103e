from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from classgrad import InputError
from classgrad.data import Dataset, Preprocessing, Split, contact_sheet, gaussian_classes, load


def flat_classes(counts: list[int], channels: int = 3, height: int = 8, width: int = 8) -> Dataset:
    """Every image of class i is filled with the value 10 + i."""
    y = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    x = (10 + y).to(torch.uint8)[:, None, None, None].expand(-1, channels, height, width).clone()
    split = Split(x, y, torch.arange(len(y)))
    names = tuple(f"c{i}" for i in range(len(counts)))
    preprocessing = Preprocessing(names, (channels, height, width), (0.5,) * channels, (1.0,) * channels)
    return Dataset("flat", None, split, split, split, preprocessing, "x")


def pixels_of(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image)


@pytest.mark.parametrize(("channels", "height", "width"), [(3, 8, 8), (1, 8, 8), (3, 64, 32), (1, 3, 12)])
def test_every_class_is_shown_with_as_many_images_as_it_has(
    tmp_path: Path, channels: int, height: int, width: int
) -> None:
    path = contact_sheet(flat_classes([40, 3], channels, height, width), tmp_path / "new" / "sheet.png", per_class=5)
    sheet = pixels_of(path)
    square = 48 * max(1, round(48 * min(height, width) / max(height, width)))
    for label, shown in ((0, 5), (1, 3)):
        assert int((sheet == 10 + label).all(axis=2).sum()) == shown * square


def test_many_classes_take_several_columns(tmp_path: Path) -> None:
    path = contact_sheet(flat_classes([2] * 60), tmp_path / "sheet.png")
    sheet = pixels_of(path)
    assert sheet.shape[1] > sheet.shape[0] / 2
    for label in range(60):
        assert int((sheet == 10 + label).all(axis=2).sum()) >= 2 * 48 * 48


def test_images_are_spread_over_the_class(tmp_path: Path) -> None:
    data = load("digits")
    contact_sheet(data, tmp_path / "a.png", per_class=3)
    contact_sheet(data, tmp_path / "b.png", per_class=3)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_features_have_no_sheet(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="gaussian has no images to show: its examples are 20 features"):
        contact_sheet(gaussian_classes([5, 5]), tmp_path / "sheet.png")
    assert list(tmp_path.iterdir()) == []

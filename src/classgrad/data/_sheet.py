"""A contact sheet: for every class its name, its count and some of its images, as one PNG."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch

from classgrad._errors import InputError
from classgrad._files import write_atomically
from classgrad._lab import lab_module
from classgrad.data._dataset import Dataset

_SIDE, _GAP, _MARGIN, _FONT = 48, 4, 16, 15
_ROWS = 25  # classes in a column of the sheet
_INK, _PALE, _PAPER = (32, 32, 32), (120, 120, 120), (255, 255, 255)


def contact_sheet(dataset: Dataset, path: str | Path, *, per_class: int = 10) -> Path:
    """Write examples of every class of the training split to the PNG ``path``, the majority class first."""
    if not dataset.preprocessing.images:
        raise InputError(f"{dataset.name} has no images to show: its examples are {dataset.train.x.shape[1]} features")
    target = Path(path).expanduser()
    if target.suffix.lower() != ".png":
        raise InputError(f"a contact sheet must be a .png file, found {target.name}")
    sheet = _drawn(dataset, per_class)
    write_atomically(target, lambda part: sheet.save(part, format="PNG"))
    return target


def _drawn(dataset: Dataset, per_class: int) -> Any:
    pil, draw_module = (lab_module(f"PIL.{name}", "a contact sheet") for name in ("Image", "ImageDraw"))
    font = lab_module("PIL.ImageFont", "a contact sheet").load_default(_FONT)
    counts = dataset.counts["train"]
    captions = [(name, f"{n:,} images") for name, n in zip(dataset.classes, counts, strict=True)]
    text_width = math.ceil(max(font.getlength(line) for caption in captions for line in caption)) + _GAP * 3

    columns = math.ceil(len(captions) / _ROWS)
    rows = math.ceil(len(captions) / columns)
    column_width = text_width + per_class * (_SIDE + _GAP) + _MARGIN
    size = (_MARGIN + columns * column_width, 2 * _MARGIN + rows * (_SIDE + _GAP))
    sheet = pil.new("RGB", size, _PAPER)
    draw = draw_module.Draw(sheet)
    for label, caption in enumerate(captions):
        column, row = divmod(label, rows)
        left, top = _MARGIN + column * column_width, _MARGIN + row * (_SIDE + _GAP)
        for line, (text, colour) in enumerate(zip(caption, (_INK, _PALE), strict=True)):
            draw.text((left, top + _SIDE / 2 + (line - 1) * (_FONT + 3)), text, fill=colour, font=font)
        for position, image in enumerate(_pictures(pil, dataset, label, per_class)):
            sheet.paste(image, (left + text_width + position * (_SIDE + _GAP), top))
    return sheet


def _pictures(pil: Any, dataset: Dataset, label: int, per_class: int) -> list[Any]:
    """Images spread evenly over the class, each in a square."""
    positions = torch.nonzero(dataset.train.y == label).flatten()
    shown = min(per_class, len(positions))
    chosen = positions[torch.arange(shown) * len(positions) // shown]
    squares = []
    for pixels in dataset.train.x[chosen].permute(0, 2, 3, 1).numpy():
        image = pil.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).convert("RGB")
        scale = _SIDE / max(image.size)
        shape = tuple(max(1, round(side * scale)) for side in image.size)
        squares.append(image.resize(shape, pil.Resampling.NEAREST if scale > 2 else pil.Resampling.LANCZOS))
    return squares

"""``classgrad predict``: use a trained model on new data."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from classgrad._files import write_atomically
from classgrad.cli._console import Json, Output, Quiet
from classgrad.cli._model_file import load_model
from classgrad.cli._source import DataDir
from classgrad.data import Examples, load, load_new, recipes
from classgrad.training import TrainedModel, resolve_device

_SHOWN = 20

ModelFile = Annotated[Path, typer.Argument(metavar="MODEL", help="A model.safetensors, or the folder of its run.")]
NewData = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="A .csv, .parquet or .npz file, an image or a folder of images; a dataset's name means its test split.",
    ),
]
Csv = Annotated[Path | None, typer.Option(help="Write all predictions to this CSV file.", show_default=False)]
BatchSize = Annotated[int, typer.Option(metavar="N", min=1, help="Examples at a time.")]
Device = Annotated[str, typer.Option(metavar="auto|cpu|cuda", help="Where to compute.")]


def predict(
    model: ModelFile,
    source: NewData,
    out: Csv = None,
    batch_size: BatchSize = 1024,
    device: Device = "auto",
    data_dir: DataDir = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Predict the classes of new data with a trained model."""
    output = Output(json, quiet)
    trained = load_model(model)
    examples = _examples(source, trained, data_dir)
    chances = _probabilities(trained, examples.x, batch_size, device)
    classes = trained.preprocessing.classes
    best = [classes[label] for label in chances.argmax(-1).tolist()]
    if out is not None:
        _write_csv(out, classes, examples.names, best, chances)
    rows = list(zip(examples.names, best, (f"{p:.4f}" for p in chances.amax(-1).tolist()), strict=True))
    output.table(["example", "class", "probability"], rows[:_SHOWN])
    if len(rows) > _SHOWN:
        output.say(f"... and {len(rows) - _SHOWN} more")
    counts = Counter(best)
    output.say(", ".join(f"{counts[name]} {name}" for name in classes if counts[name]))
    if out is not None:
        output.say(f"predictions  {out}")
    output.document(
        [
            {"example": name, "class": label, "probabilities": dict(zip(classes, values, strict=True))}
            for name, label, values in zip(examples.names, best, chances.tolist(), strict=True)
        ]
    )


def _examples(source: str, trained: TrainedModel, data_dir: Path | None) -> Examples:
    if source not in recipes():
        return load_new(source, trained.preprocessing, delimiter=trained.spec.data_options.get("delimiter"))
    test = load(source, data_dir=data_dir).test
    return Examples(test.x, tuple(str(index) for index in test.indices.tolist()))


def _probabilities(trained: TrainedModel, x: Tensor, batch_size: int, device: str) -> Tensor:
    place = resolve_device(device)
    model = trained.model.to(place)
    dtype = next(model.parameters()).dtype
    with torch.no_grad():
        parts = [
            model(trained.preprocessing.normalize(x[start : start + batch_size].to(place), dtype)).softmax(-1).cpu()
            for start in range(0, len(x), batch_size)
        ]
    return torch.cat(parts)


def _write_csv(path: Path, classes: Sequence[str], names: Sequence[str], best: Sequence[str], chances: Tensor) -> None:
    def write(part: Path) -> None:
        with part.open("w", newline="", encoding="utf-8") as file:
            table: Any = csv.writer(file)
            table.writerow(["example", "class", *(f"p({name})" for name in classes)])
            for name, label, values in zip(names, best, chances.tolist(), strict=True):
                table.writerow([name, label, *values])

    write_atomically(path, write)

"""``classgrad data``: which datasets there are, and what is in them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from classgrad._errors import InputError
from classgrad.cli._console import Json, Output, Quiet
from classgrad.cli._source import DataDir, DataOptions, Protocol, Source, Target, load_source
from classgrad.data import Dataset, Recipe, contact_sheet, recipes

app = typer.Typer(help="Which datasets there are, and what is in them.", no_args_is_help=True)

_SPLITS = ("train", "validation", "test")


@app.command("list")
def list_(json: Json = False, quiet: Quiet = False) -> None:
    """List the datasets that have a name, with the options they take."""
    out = Output(json, quiet)
    found = recipes()
    out.table(
        ["name", "what it is", "protocols", "options"],
        [
            (name, recipe.summary, ", ".join(recipe.protocols), ", ".join(_options(recipe)))
            for name, recipe in found.items()
        ],
    )
    out.say(
        "Anything else is taken for a file or folder of your own: .npz, .csv, .tsv, .parquet or a folder of images."
    )
    out.document(
        [
            {"name": name, "summary": recipe.summary, "protocols": recipe.protocols, "options": _options(recipe)}
            for name, recipe in found.items()
        ]
    )


def _options(recipe: Recipe) -> dict[str, Any]:
    protocols = recipe.protocols or ("paper",)
    return {name: default for protocol in protocols for name, default in recipe.options(protocol).items()}


@app.command()
def show(
    source: Source,
    protocol: Protocol = "paper",
    data_dir: DataDir = None,
    target: Target = None,
    option: DataOptions = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write a contact sheet of examples to this PNG file, or into this folder.", show_default=False
        ),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show the classes of a dataset, their counts in every split, and examples as a contact sheet."""
    output = Output(json, quiet)
    dataset = load_source(
        source, protocol=protocol, data_dir=data_dir, target=target, options=option, progress=output.talks
    )
    sheet = None if out is None else contact_sheet(dataset, out / f"{dataset.name}.png" if out.is_dir() else out)
    _describe(output, dataset)
    if sheet is not None:
        output.say(f"contact sheet   {sheet}")
    output.document({**_facts(dataset), "contact_sheet": None if sheet is None else str(sheet)})


def _describe(output: Output, dataset: Dataset) -> None:
    counts = dataset.counts
    rows = [
        (label, name, *(f"{counts[split][label]:,}" for split in _SPLITS)) for label, name in enumerate(dataset.classes)
    ]
    total = ("", "all", *(f"{sum(counts[split]):,}" for split in _SPLITS))
    output.table(["label", "class", *_SPLITS], [*rows, total], title=_title(dataset))
    output.say(f"imbalance ρ     {dataset.rho:.4g}")
    output.say(f"examples        {_shape(dataset)}")
    output.say(f"mean            {_numbers(dataset.mean)}")
    output.say(f"std             {_numbers(dataset.std)}")
    output.say(f"fingerprint     {dataset.fingerprint}")


def _title(dataset: Dataset) -> str:
    return dataset.name if dataset.protocol is None else f"{dataset.name}, protocol {dataset.protocol}"


def _shape(dataset: Dataset) -> str:
    shape = dataset.preprocessing.shape
    if dataset.preprocessing.images:
        return f"images of {shape[1]} x {shape[2]} pixels, {shape[0]} channel{'s' * (shape[0] > 1)}"
    names = dataset.preprocessing.features
    return f"{shape[0]} features" + (f": {_short(names)}" if names else "")


def _numbers(values: Sequence[float]) -> str:
    return _short([f"{value:.4f}" for value in values])


def _short(texts: Sequence[str], most: int = 8) -> str:
    return ", ".join(texts[:most]) + (f", ... ({len(texts)} in all)" if len(texts) > most else "")


def _facts(dataset: Dataset) -> dict[str, Any]:
    return {
        "name": dataset.name,
        "protocol": dataset.protocol,
        "classes": dataset.classes,
        "counts": dataset.counts,
        "rho": dataset.rho,
        "shape": dataset.preprocessing.shape,
        "features": dataset.preprocessing.features,
        "mean": dataset.mean,
        "std": dataset.std,
        "fingerprint": dataset.fingerprint,
    }


@app.command()
def table(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Datasets; all of them if left out.")
    ] = None,
    data_dir: DataDir = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Print the counts of datasets, in every protocol they have, as a Markdown table."""
    output = Output(json, quiet)
    known = recipes()
    for name in names or ():
        if name not in known:
            raise InputError(f"{name!r} is not the name of a dataset: the names are {', '.join(known)}")
    datasets = [
        load_source(name, protocol=protocol, data_dir=data_dir, progress=output.talks)
        for name in names or known
        for protocol in known[name].protocols or ("paper",)
    ]
    columns = ("dataset", "protocol", "classes", *_SPLITS, "ρ", "mean", "std", "fingerprint")
    lines = [columns, ["---"] * len(columns), *map(_markdown_row, datasets)]
    for line in lines:
        output.say(f"| {' | '.join(line)} |")
    output.document([_facts(dataset) for dataset in datasets])


def _markdown_row(dataset: Dataset) -> Sequence[str]:
    counts = dataset.counts
    return (
        dataset.name,
        dataset.protocol or "",
        _few(dataset.classes),
        *(_few([str(n) for n in counts[split]]) for split in _SPLITS),
        f"{dataset.rho:.4g}",
        _numbers(dataset.mean[:3]) if dataset.preprocessing.images else "",
        _numbers(dataset.std[:3]) if dataset.preprocessing.images else "",
        dataset.fingerprint[:12],
    )


def _few(texts: Sequence[str]) -> str:
    """Return all of a few, one of many that are equal, and the ends of many that are not."""
    if len(set(texts)) == 1:
        return "none" if texts[0] == "0" else f"{texts[0]} each"
    if len(texts) <= 10:
        return ", ".join(texts)
    return f"{', '.join(texts[:3])}, ..., {texts[-1]} ({len(texts)})"

"""``classgrad train``: one algorithm on one data set."""

from __future__ import annotations

from typing import Annotated

import typer

from classgrad.cli._experiment import train_algorithms
from classgrad.cli._settings import Seeds, TrainingOptions, parse_seeds, with_training_options
from classgrad.cli._source import Source
from classgrad.training import ALGORITHMS

Algorithm = Annotated[str, typer.Option("--algorithm", "-a", metavar="NAME", help=f"One of {', '.join(ALGORITHMS)}.")]


@with_training_options
def train(source: Source, algorithm: Algorithm = "pcnsgd+o", seeds: Seeds = "1", *, options: TrainingOptions) -> None:
    """Train a model, watching every class; keep its record, its weights and a report.

    For example: classgrad train digits-bi20 --algorithm pcngd --lr 0.05 --steps 500 --seeds 3
    """
    train_algorithms([algorithm], source, parse_seeds(seeds), options, place=algorithm)

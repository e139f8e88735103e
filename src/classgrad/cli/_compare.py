"""``classgrad compare``: several algorithms side by side on one data set."""

from __future__ import annotations

from typing import Annotated

import typer

from classgrad.cli._experiment import train_algorithms
from classgrad.cli._settings import Seeds, TrainingOptions, parse_algorithms, parse_seeds, with_training_options
from classgrad.cli._source import Source

Algorithms = Annotated[
    str,
    typer.Option("--algorithms", "-a", metavar="all|LIST", help="Names separated by commas, or the paper's seven."),
]


@with_training_options
def compare(source: Source, algorithms: Algorithms = "all", seeds: Seeds = "3", *, options: TrainingOptions) -> None:
    """Train several algorithms alike and report them side by side.

    For example: classgrad compare digits-mul10 --algorithms gd,pcngd,pcnsgd+o --steps 500
    """
    train_algorithms(parse_algorithms(algorithms), source, parse_seeds(seeds), options, place="compare")

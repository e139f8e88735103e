"""The options that say how to train, for every subcommand that does."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from classgrad._errors import InputError
from classgrad.cli._console import Json, Output, Quiet
from classgrad.cli._source import DataDir, DataOptions, Protocol, Target, data_options, pairs
from classgrad.models import MODELS
from classgrad.training import ALGORITHMS, SCHEDULES, SEVEN, RunSpec

Model = Annotated[
    str | None,
    typer.Option(metavar="|".join(MODELS), help="Network; by default simple_cnn for images and mlp otherwise."),
]
Optimizer = Annotated[str, typer.Option(metavar="NAME", help="torch optimizer, such as sgd or adamw.")]
Lr = Annotated[float, typer.Option(metavar="RATE", help="Learning rate.")]
Schedule = Annotated[
    str | None,
    typer.Option(metavar="NAME", help=f"Step sizes: {', '.join(SCHEDULES)}; by default the algorithm's."),
]
Scheduler = Annotated[
    str | None, typer.Option(metavar="NAME", help="torch learning-rate scheduler in place of --schedule.")
]
BatchSize = Annotated[int, typer.Option(metavar="N", help="Examples in a batch (not for full-batch algorithms).")]
Steps = Annotated[int, typer.Option(metavar="N", help="Number of updates.")]
Seeds = Annotated[
    str,
    typer.Option(metavar="N|LIST", help="How many seeds (0, 1, ...), or which: 3,5,8, or 7, for one. A run each."),
]
Grid = Annotated[
    str, typer.Option(metavar="GRID", help="Measured steps: log, log:POINTS, authors, all, or a list as 1,10,100.")
]
Device = Annotated[str, typer.Option(metavar="auto|cpu|cuda", help="Where to train.")]
Precision = Annotated[str, typer.Option(metavar="float64|float32|tf32|bf16", help="Number format.")]
Capture = Annotated[
    bool, typer.Option("--capture/--no-capture", help="On a GPU, replay steps as CUDA graphs: the same bits, faster.")
]
Compile = Annotated[bool, typer.Option("--compile", help="Run the network's training passes through torch.compile.")]
ChannelsLast = Annotated[
    bool, typer.Option("--channels-last", help="Keep the channels of images and convolutions side by side in memory.")
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Any other setting, may be repeated: rule.every=10, model.hidden=[64,64], optimizer.momentum=0.9, "
        "schedule.smoothness=5, scheduler.T_max=100, crop=4, flip=true, every=true, gradients=false, chunk=1000.",
        show_default=False,
    ),
]
Out = Annotated[
    Path | None, typer.Option(help="Folder for records, models and report; by default runs/...", show_default=False)
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the runs in the folder, finished ones are kept.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Start anew where the folder holds runs.")]
Workers = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Runs at the same time; by default one per CPU core, 1 on a GPU.", show_default=False
    ),
]
Together = Annotated[
    int, typer.Option(metavar="N", help="Runs that one process makes in turns, on a GPU with a stream for each.")
]
TensorBoard = Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard logs while training.")]

_FIELDS = {field.name for field in fields(RunSpec)} - {"data", "algorithm", "seed", "data_options"}


@dataclass(frozen=True)
class TrainingOptions:
    """The options that all training subcommands share."""

    model: Model = None
    optimizer: Optimizer = "sgd"
    lr: Lr = 0.05
    batch_size: BatchSize = 128
    steps: Steps = 1000
    schedule: Schedule = None
    scheduler: Scheduler = None
    grid: Grid = "log"
    device: Device = "auto"
    precision: Precision = "float32"
    capture: Capture = True
    compile: Compile = False
    channels_last: ChannelsLast = False
    set_: Set = None
    protocol: Protocol = "paper"
    data_dir: DataDir = None
    target: Target = None
    option: DataOptions = None
    out: Out = None
    resume: Resume = False
    overwrite: Overwrite = False
    workers: Workers = None
    together: Together = 1
    tensorboard: TensorBoard = False
    json: Json = False
    quiet: Quiet = False

    @property
    def output(self) -> Output:
        """Where results are printed."""
        return Output(self.json, self.quiet)

    def settings(self) -> dict[str, Any]:
        """Return the fields of a run; ``--set`` wins over the option of the same name."""
        named = ("optimizer", "lr", "batch_size", "steps", "schedule", "scheduler", "protocol")
        machine = ("device", "precision", "capture", "compile", "channels_last")
        return {
            **{name: getattr(self, name) for name in (*named, *machine)},
            **({} if self.model is None else {"model": self.model}),
            "grid": parse_grid(self.grid),
            "data_options": data_options(self.target, self.option),
            **other_settings(self.set_),
        }


def with_training_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command every field of :class:`TrainingOptions` as an option; it gets them as one object ``options``."""
    hints = get_type_hints(TrainingOptions, include_extras=True)
    shared = [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
        for field in fields(TrainingOptions)
    ]
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "options"]

    @functools.wraps(command)
    def wrapper(**values: Any) -> None:
        options = TrainingOptions(**{field.name: values.pop(field.name) for field in fields(TrainingOptions)})
        command(**values, options=options)

    parameters = [*own, *shared]
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapper


def parse_seeds(text: str) -> list[int]:
    """Read ``3`` as 0, 1, 2 and ``3,5`` as these two.

    >>> parse_seeds("2"), parse_seeds("7,")
    ([0, 1], [7])
    """
    try:
        numbers = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        numbers = []
    seeds = numbers if "," in text else list(range(numbers[0])) if numbers else []
    if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise InputError(f"--seeds must be a number of at least 1, or different seeds such as 3,5,8; found {text!r}")
    return seeds


def parse_grid(text: str) -> str | tuple[int, ...]:
    """Read a grid's name, or a list of steps.

    >>> parse_grid("log:20"), parse_grid("1,10")
    ('log:20', (1, 10))
    """
    parts = [part.strip() for part in text.split(",")]
    return tuple(int(part) for part in parts) if all(part.isdecimal() for part in parts) else text


def parse_algorithms(text: str) -> list[str]:
    """Read ``all`` (the paper's seven) or names separated by commas."""
    names = list(SEVEN) if text == "all" else [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in ALGORITHMS]
    if unknown or not names or len(set(names)) < len(names):
        found = repr(unknown[0] if unknown else text)
        raise InputError(f"--algorithms must be all, or different ones of {', '.join(ALGORITHMS)}; found {found}")
    return names


def other_settings(given: Sequence[str] | None) -> dict[str, Any]:
    """Read the ``--set`` arguments: fields of a run, and with a dot the options of its parts.

    >>> other_settings(["rule.every=10", "crop=4"])
    {'rule_options': {'every': 10}, 'crop': 4}
    """
    settings: dict[str, Any] = {}
    for name, value in pairs("--set", given).items():
        part, dot, option = name.partition(".")
        field = f"{part}_options" if dot else name
        if field not in _FIELDS or (field.endswith("_options") and not dot):
            known = sorted(f.replace("_options", ".OPTION") for f in _FIELDS)
            raise InputError(f"--set must name a setting of {', '.join(known)}; found {name!r}")
        if dot:
            settings.setdefault(field, {})[option] = value
        else:
            settings[field] = value
    return settings

"""What a run is: plain settings whose hash is its identity."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, get_args

from classgrad._errors import InputError
from classgrad.dynamics import measuring_grid
from classgrad.models import MODELS
from classgrad.training._algorithms import Algorithm, algorithm
from classgrad.training._chunk import ON_CPU, Chunk
from classgrad.training._numerics import Precision
from classgrad.training._optimizers import LR_SCHEDULERS, OPTIMIZERS
from classgrad.training._schedules import schedule

_MOST_THREADS = 1024
_LARGEST = sys.float_info.max


@dataclass(frozen=True)
class RunSpec:
    """Everything that decides the bits of a run, as JSON values.

    Args:
        data: a recipe's name or the path of one's own data, with ``data_options``; see :func:`classgrad.data.load`.
        algorithm: a name of :data:`ALGORITHMS`, with ``rule_options`` such as ``{"every": 10}`` for ``pcnsgd+r``.
        protocol: ``"paper"`` as the text says, or ``"authors"`` as the released code does.
        model: a name of :mod:`classgrad.models`, with ``model_options``.
        lr: the learning rate; what it stands for depends on ``schedule`` (by default the algorithm's, ``constant``).
        batch_size: examples in a batch; full-batch algorithms have no use for it.
        steps: number of updates.
        seed: of everything random in the run.
        grid: at which steps to measure: ``log``, ``log:20``, ``all``, a list of steps; see
            :func:`classgrad.dynamics.measuring_grid`.
        schedule: a name of :data:`SCHEDULES`, with ``schedule_options``.
        optimizer: a torch optimizer, with ``optimizer_options``.
        scheduler: a torch learning-rate scheduler in place of ``schedule``, with ``scheduler_options``.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:1``.
        precision: ``float64``, ``float32``, ``tf32`` or ``bf16`` (autocast; parameters stay float32).
        crop: pixels of random crops of training images; ``flip``: random mirroring.
        gradients: whether to measure the class gradients of the whole training set at every measuring point.
        every: whether to also record the cheap quantities of every step.
        chunk: most examples in one forward pass of the whole training set; ``"auto"`` is the most that fit into a
            quarter of the memory of a GPU; on a CPU 4096, and of a larger set fewer, as caches hold (256 CIFAR images).
        capture: whether to replay steps as CUDA graphs on a GPU. The bits are those of steps that are not replayed, so
            it is no part of a run's identity.
        compile: whether to run the network's training passes through torch.compile: all of it, or where class gradients
            are read off its layers what lies between them.
        channels_last: whether weights and batches of images lie in memory with their channels side by side, which
            convolutions on a GPU prefer; for networks with convolutions.
        threads: CPU threads of torch; the order of sums, and so the last bits, depend on it.

    >>> spec = RunSpec(data="digits-bi20", algorithm="pcngd", lr=0.05, steps=300)
    >>> RunSpec.from_json(spec.to_json()) == spec
    True
    """

    data: str
    algorithm: str
    lr: float
    steps: int
    model: str = "mlp"
    protocol: str = "paper"
    batch_size: int = 128
    seed: int = 0
    grid: str | tuple[int, ...] = "log"
    schedule: str | None = None
    optimizer: str = "sgd"
    scheduler: str | None = None
    device: str = "auto"
    precision: str = "float32"
    crop: int = 0
    flip: bool = False
    gradients: bool = True
    every: bool = False
    chunk: Chunk = "auto"
    threads: int = 1
    capture: bool = True
    compile: bool = False
    channels_last: bool = False
    data_options: Mapping[str, Any] = field(default_factory=dict)
    model_options: Mapping[str, Any] = field(default_factory=dict)
    rule_options: Mapping[str, Any] = field(default_factory=dict)
    schedule_options: Mapping[str, float] = field(default_factory=dict)
    optimizer_options: Mapping[str, Any] = field(default_factory=dict)
    scheduler_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("batch_size", 1), ("threads", 1), ("seed", 0), ("crop", 0)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise InputError(f"Parameter `{name}` should be a whole number of at least {least}. Found {value!r}.")
        if self.chunk != "auto" and (type(self.chunk) is not int or self.chunk < 1):
            raise InputError(f"Parameter `chunk` should be auto or a whole number of at least 1. Found {self.chunk!r}.")
        for name in ("capture", "compile", "channels_last", "flip", "gradients", "every"):
            if type(getattr(self, name)) is not bool:
                raise InputError(f"Parameter `{name}` should be true or false. Found {getattr(self, name)!r}.")
        for name in ("data", "model", "rule", "schedule", "optimizer", "scheduler"):
            if not isinstance(getattr(self, f"{name}_options"), Mapping):
                raise InputError(f"Parameter `{name}_options` should be a mapping of names to values. Found another.")
        if not (type(self.lr) in (int, float) and 0 < self.lr <= _LARGEST):
            raise InputError(f"Parameter `lr` should be a number above 0. Found {self.lr!r}.")
        for name, choices in (
            ("precision", get_args(Precision)),
            ("model", tuple(MODELS)),
            ("optimizer", tuple(OPTIMIZERS)),
            ("scheduler", (None, *LR_SCHEDULERS)),
        ):
            value = getattr(self, name)
            if isinstance(value, str):
                value = value.lower()
                object.__setattr__(self, name, value)
            if value not in choices:
                raise InputError(f"Parameter `{name}` should be one of {_listing(choices)}. Found {value!r}.")
        if self.threads > _MOST_THREADS:
            raise InputError(f"Parameter `threads` should be at most {_MOST_THREADS}. Found {self.threads!r}.")
        if isinstance(self.grid, Sequence) and not isinstance(self.grid, str):
            object.__setattr__(self, "grid", tuple(self.grid))
        if not isinstance(self.device, str):
            raise InputError(f"Parameter `device` should be auto, cpu, cuda or cuda:N. Found {self.device!r}.")
        measuring_grid(self.grid, self.steps)
        row = self.row  # checks the algorithm, the protocol and the rule's options
        schedule(self.schedule or row.schedule, self.schedule_options)
        if self.scheduler is None and self.scheduler_options:
            raise InputError(
                f"Parameter `scheduler_options` should come with a `scheduler`. Found {dict(self.scheduler_options)}."
            )
        if self.scheduler is not None and self.schedule not in (None, "constant"):
            raise InputError(f"Parameter `scheduler` replaces `schedule`; give one of them. Found {self.schedule!r}.")

    @property
    def row(self) -> Algorithm:
        """The algorithm with its options."""
        return algorithm(self.algorithm, protocol=self.protocol, **self.rule_options)

    @property
    def schedule_name(self) -> str:
        """The schedule in force; a torch scheduler starts from a constant rate."""
        return "constant" if self.scheduler else self.schedule or self.row.schedule

    def to_json(self) -> str:
        """Write the settings as one line of JSON."""
        try:
            return json.dumps(asdict(self), sort_keys=True, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise InputError(f"The settings of a run should be plain JSON values. Found: {error}.") from error

    @classmethod
    def from_json(cls, text: str) -> RunSpec:
        """Read what :meth:`to_json` wrote."""
        try:
            return cls(**json.loads(text))
        except (OverflowError, RecursionError, TypeError, ValueError) as error:
            raise InputError(f"The settings of the run cannot be read: {' '.join(str(error).split())}") from error

    def identity(self, fingerprint: str) -> str:
        """Hash of all settings and of the data itself, wherever it lies (16 hexadecimal digits)."""
        values = {**json.loads(self.to_json()), "data": fingerprint, "data_options": {}}
        del values["capture"]
        for name in ("compile", "channels_last"):  # runs from before they could be asked for keep their names
            if not values[name]:
                del values[name]
        if self.chunk == "auto":
            values["chunk"] = ON_CPU
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]

    def labels(self) -> dict[str, str]:
        """Algorithm, model and optimizer with the options that tell them from others of the same name."""
        named = {"schedule": self.schedule, "scheduler": self.scheduler}
        chosen = {key: name for key, name in named.items() if name}
        sizes = {**chosen, **self.schedule_options, **self.scheduler_options}
        return {
            "algorithm": _label(self.algorithm, self.rule_options),
            "model": _label(self.model, self.model_options),
            "optimizer": _label(self.optimizer, {**self.optimizer_options, **sizes}),
        }


def _label(name: str, options: Mapping[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value}' for key, value in options.items())})" if options else name


def _listing(choices: tuple[Any, ...]) -> str:
    return ", ".join(str(choice) for choice in choices if choice is not None)

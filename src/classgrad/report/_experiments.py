"""Runs put in order: problems (a data set), in each its experiments (an algorithm), in each the seeds."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from classgrad._errors import InputError
from classgrad.dynamics import SETTINGS, SPLITS, Run

PREFERRED_SPLITS = ("test", "validation", "train")
"""Where results are read, in order of preference."""

_PROBLEM = ("data", "protocol", "classes")
_EXPERIMENT = (*SETTINGS, "steps")
_TOLD_APART_BY = ("model", "optimizer", "lr", "batch_size", "steps", "precision")
_NO_SETTING = ("data", "seed", "device", "capture", "threads", "chunk")
"""Entries of a run's full settings that seeds of one experiment need not share."""


@dataclass(frozen=True, eq=False)
class Experiment:
    """The seeds of one algorithm with one choice of settings."""

    label: str
    runs: tuple[Run, ...]

    @cached_property
    def averaged(self) -> tuple[Run, ...]:
        """The runs that averages are of: those that finished, or all of them where none did."""
        finished = tuple(run for run in self.runs if ended(run) == "finished")
        return finished or self.runs

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits whose recall every averaged run measured."""
        return tuple(split for split in SPLITS if self.measured(f"{split}/confusion"))

    @property
    def split(self) -> str | None:
        """The split that results are read from; None where recall was not measured at all."""
        return next((split for split in PREFERRED_SPLITS if split in self.splits), None)

    def measured(self, series: str) -> bool:
        """Whether every averaged run has a series of that name."""
        return all(series in run for run in self.averaged)


@dataclass(frozen=True, eq=False)
class Problem:
    """The experiments on one data set."""

    label: str
    experiments: tuple[Experiment, ...]

    @property
    def runs(self) -> list[Run]:
        """All runs."""
        return [run for experiment in self.experiments for run in experiment.runs]

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Training examples of every class, in the run where they differ most."""
        most: Run = max(self.runs, key=lambda run: run.counts.max() / max(run.counts.min(), 1))
        return most.counts

    @cached_property
    def order(self) -> NDArray[np.int64]:
        """The classes from majority to minority."""
        return np.argsort(-self.counts, kind="stable")

    @property
    def last(self) -> int:
        """The last measured step of any run."""
        return max(int(run.steps[-1]) for run in self.runs)

    @property
    def classes(self) -> list[str]:
        """The names of the classes from majority to minority."""
        return [self.runs[0].classes[label] for label in self.order]


def ended(run: Run) -> str:
    """How a run ended, one of :data:`classgrad.dynamics.STATUSES`."""
    return str(run.meta.get("status", "finished"))


def problems(runs: Sequence[Run]) -> list[Problem]:
    """Group runs by data set, then by settings, in the order in which they come; the same run twice counts once."""
    if not runs:
        raise InputError("Parameter `runs` should hold at least one run. Found none.")
    groups = list(_grouped([(_key(run.meta, _PROBLEM), run) for run in _distinct(runs)]).values())
    names = _labels([(str(group[0].meta.get("data") or "data"), group[0].meta) for group in groups], ("protocol",))
    return [Problem(name, tuple(_experiments(group))) for name, group in zip(names, groups, strict=True)]


def plain(value: Any) -> str:
    """Write a setting as a reader would: words as they are, numbers short, anything else as JSON."""
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _experiments(runs: Sequence[Run]) -> list[Experiment]:
    seen: Counter[str] = Counter()
    keyed = []
    for run in runs:
        key = _key(run.meta, _EXPERIMENT) + json.dumps(_spec(run.meta), sort_keys=True)
        with_seed = f"{key} {run.meta.get('seed')}"
        keyed.append((f"{key} {seen[with_seed]}", run))
        seen[with_seed] += run.meta.get("seed") is not None
    groups = list(_grouped(keyed).values())
    metas = [{**_others(group[0].meta), **group[0].meta} for group in groups]
    names = _labels(
        [(str(meta.get("algorithm") or "algorithm"), meta) for meta in metas],
        tuple(dict.fromkeys((*_TOLD_APART_BY, *(name for meta in metas for name in _others(meta))))),
    )
    return [Experiment(name, tuple(group)) for name, group in zip(names, groups, strict=True)]


def _others(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the full settings of a run by their names, options by their own."""
    found: dict[str, Any] = {}
    for name, value in _spec(meta).items():
        found |= value if isinstance(value, Mapping) else {name: value}
    return found


def _spec(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the full settings of a run that carries them, as far as seeds share them."""
    return {name: value for name, value in (meta.get("spec") or {}).items() if name not in _NO_SETTING}


def _labels(named: Sequence[tuple[str, Mapping[str, Any]]], told_apart_by: Sequence[str]) -> list[str]:
    """Add to names that come more than once the settings they differ in, and a number where that is not enough."""
    labels = []
    for name, meta in named:
        namesakes = [other for twin, other in named if twin == name]
        differing = [key for key in told_apart_by if len({_key(other, (key,)) for other in namesakes}) > 1]
        labels.append(", ".join([name, *(f"{key.replace('_', ' ')} {plain(meta.get(key))}" for key in differing)]))
    met: Counter[str] = Counter()
    for place, label in enumerate(labels):
        met[label] += 1
        if met[label] > 1:
            labels[place] = f"{label} ({met[label]})"
    return labels


def _grouped(keyed: Iterable[tuple[str, Run]]) -> dict[str, list[Run]]:
    groups: dict[str, list[Run]] = {}
    for key, run in keyed:
        groups.setdefault(key, []).append(run)
    return groups


def _distinct(runs: Sequence[Run]) -> list[Run]:
    kept: list[Run] = []
    namesakes: dict[str, list[Run]] = {}
    for run in runs:
        known = namesakes.setdefault(_key(run.meta, (*_EXPERIMENT, "seed")), [])
        if not any(run.identical(other) for other in known):
            known.append(run)
            kept.append(run)
    return kept


def _key(meta: Mapping[str, Any], keys: Sequence[str]) -> str:
    return json.dumps([meta.get(key) for key in keys], sort_keys=True)

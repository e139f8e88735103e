"""Commands and settings to repeat the runs of a report."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from classgrad.report._experiments import Experiment, Problem, plain
from classgrad.training import RunSpec

_ALWAYS = ("model", "lr", "steps")
_FLAGS = (*_ALWAYS, "optimizer", "batch_size", "schedule", "scheduler", "grid", "device", "precision", "protocol")
_NAMED_OTHERWISE = {*_FLAGS, "data", "algorithm", "seed"}
_NOT_SETTINGS = {"classes", "counts", "identity", "message", "seed", "spec", "status"}
_DEFAULTS = {
    field.name: field.default if field.default_factory is MISSING else field.default_factory()
    for field in fields(RunSpec)
}


def commands(problem: Problem) -> list[str]:
    """Command lines that make the runs again, one for all algorithms with equal settings; none where they are unknown.

    The settings are those of :class:`classgrad.training.RunSpec`, which runs made by classgrad carry.
    """
    alike: dict[tuple[str, ...], list[str]] = {}
    for experiment in problem.experiments:
        spec = experiment.runs[0].meta.get("spec")
        if spec:
            key = (spec["data"], *_options(spec), "--seeds", _seeds(experiment))
            alike.setdefault(key, []).append(spec["algorithm"])
    return [_command(key, names) for key, names in alike.items()]


def settings(problem: Problem) -> tuple[list[tuple[str, str]], list[tuple[str, list[str]]]]:
    """Tell settings that all experiments share from those that differ, one value per experiment."""
    each = [_settings(experiment) for experiment in problem.experiments]
    names = list(dict.fromkeys(name for found in each for name in found))
    table = [(name, [found.get(name, "") for found in each]) for name in names]
    shared = [(name, values[0]) for name, values in table if len(set(values)) == 1]
    return shared, [(name, values) for name, values in table if len(set(values)) > 1]


def _command(words: tuple[str, ...], algorithms: list[str]) -> str:
    data, *options = words
    several = len(algorithms) > 1
    names = ["--algorithms" if several else "--algorithm", ",".join(algorithms)]
    return shlex.join(["classgrad", "compare" if several else "train", data, *names, *options])


def _options(spec: Mapping[str, Any]) -> list[str]:
    """Write every setting but data, algorithm and seed as the command line takes it, unless it is the usual one."""
    words: list[str] = []
    for name in _FLAGS:
        value = spec.get(name, _DEFAULTS[name])
        if name in _ALWAYS or value != _DEFAULTS[name]:
            words += [
                f"--{name.replace('_', '-')}",
                ",".join(map(str, value)) if isinstance(value, list) else str(value),
            ]
    for name, value in spec.items():
        if name == "data_options":
            words += _pairs("--option", "", value)
        elif name.endswith("_options"):
            words += _pairs("--set", f"{name.removesuffix('_options')}.", value)
        elif name not in _NAMED_OTHERWISE and value != _DEFAULTS.get(name):
            words += _pairs("--set", "", {name: value})
    return words


def _pairs(flag: str, prefix: str, values: Mapping[str, Any]) -> list[str]:
    return [word for name, value in values.items() for word in (flag, f"{prefix}{name}={_value(value)}")]


def _value(value: Any) -> str:
    """Write a value as JSON; text that JSON would not read as something else stays as it is."""
    if isinstance(value, str):
        try:
            json.loads(value)
        except ValueError:
            return value
    return json.dumps(value)


def _seeds(experiment: Experiment) -> str:
    seeds = [run.meta.get("seed", 0) for run in experiment.runs]
    if seeds == list(range(len(seeds))):
        return str(len(seeds))
    return ",".join(map(str, seeds)) + ("," if len(seeds) == 1 else "")


def _settings(experiment: Experiment) -> dict[str, str]:
    meta = experiment.runs[0].meta
    known = {name: value for name, value in {**(meta.get("spec") or {}), **meta}.items() if name not in _NOT_SETTINGS}
    return {**dict(_flat(known)), "seeds": ", ".join(plain(run.meta.get("seed")) for run in experiment.runs)}


def _flat(known: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Name and value of every setting, those inside others too; nothing for what is not set."""
    found: list[tuple[str, str]] = []
    for name, value in known.items():
        title = prefix + name.replace("_", " ")
        if isinstance(value, Mapping):
            found += _flat(value, f"{title}: ")
        elif value is not None:
            found.append((title, plain(value)))
    return found

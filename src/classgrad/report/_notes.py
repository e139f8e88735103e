"""What a reader has to know before trusting the numbers of an experiment, in plain words."""

from __future__ import annotations

from functools import reduce

import numpy as np

from classgrad.dynamics import Run
from classgrad.report._experiments import Experiment, ended


def notes(experiment: Experiment) -> tuple[str, ...]:
    """Say what is unusual about an experiment; nothing for several seeds that finished and measured everything."""
    found = (_unfinished(experiment), _single(experiment), _unequal(experiment), *_missing(experiment))
    return tuple(note for note in found if note)


def _unfinished(experiment: Experiment) -> str:
    broken = [run for run in experiment.runs if ended(run) != "finished"]
    if not broken:
        return ""
    what = "; ".join(map(_ending, broken))
    if len(broken) == len(experiment.runs):
        return f"No run finished: {what}. Numbers and curves go as far as the runs did."
    kept = len(experiment.runs) - len(broken)
    return f"{len(broken)} of {len(experiment.runs)} runs left out of all averages, {kept} kept: {what}."


def _ending(run: Run) -> str:
    message = str(run.meta.get("message") or "").rstrip(".")
    place = f"seed {run.meta.get('seed', '?')} {ended(run)} after step {run.steps[-1]}"
    return f"{place} ({message})" if message else place


def _single(experiment: Experiment) -> str:
    return "One seed: no error bands." if len(experiment.averaged) == 1 else ""


def _unequal(experiment: Experiment) -> str:
    grids = [run.steps for run in experiment.averaged]
    shared = len(reduce(np.intersect1d, grids))
    every = len(reduce(np.union1d, grids))
    if shared == every:
        return ""
    return f"The seeds were measured at different steps: curves show the {shared} of {every} steps they share."


def _missing(experiment: Experiment) -> list[str]:
    run = experiment.averaged[0]
    absent = {
        "Recall was not measured: no results, no recall curves, no confusion matrices.": not experiment.splits,
        "Class gradients were not measured: their plots are left out.": not experiment.measured("gram"),
        "Trained on equally many examples of every class: there is no minority.": not run.minority.any(),
    }
    return [note for note, applies in absent.items() if applies]

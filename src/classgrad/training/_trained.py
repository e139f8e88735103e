"""The model that a run left."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from classgrad._errors import InputError
from classgrad.data import Preprocessing
from classgrad.training._checkpoint import load_checkpoint
from classgrad.training._folder import CHECKPOINT
from classgrad.training._models import make_model
from classgrad.training._spec import RunSpec


@dataclass(frozen=True)
class TrainedModel:
    """A model as its run left it, with what is needed to use it on new data."""

    model: nn.Module
    preprocessing: Preprocessing
    spec: RunSpec


def load_trained(out_dir: str | Path) -> TrainedModel:
    """Load the model of a finished run, in evaluation mode on the CPU; for ``r-pcngd`` the drawn iterate."""
    path = Path(out_dir) / CHECKPOINT
    if not path.is_file():
        raise InputError(f"Folder {out_dir} holds no run of classgrad ({CHECKPOINT} is missing).")
    state = load_checkpoint(path)
    lacking = {"finished", "step", "spec", "preprocessing", "reservoir", "model"} - set(state)
    if lacking:
        raise InputError(f"Checkpoint {path} does not hold {', '.join(sorted(lacking))}.")
    if not state["finished"]:
        raise InputError(f"The run in {out_dir} is at step {state['step']} and not finished; resume it first.")
    spec = RunSpec.from_json(state["spec"])
    preprocessing = Preprocessing.from_json(state["preprocessing"])
    model = make_model(spec, preprocessing)
    reservoir = state["reservoir"]
    try:
        model.load_state_dict(reservoir["kept"] if reservoir else state["model"])
    except (KeyError, RuntimeError, TypeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"Checkpoint {path}: the weights do not fit the network of the run ({reason}).") from error
    return TrainedModel(model.eval(), preprocessing, spec)

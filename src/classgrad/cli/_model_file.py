"""A trained model as one safetensors file that holds all that is needed to use it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from classgrad._errors import InputError
from classgrad._files import write_atomically
from classgrad.data import Preprocessing
from classgrad.training import MODEL_FILE, RunSpec, TrainedModel, make_model

FORMAT = "classgrad.model/1"


def save_model(trained: TrainedModel, path: Path) -> None:
    """Write the weights, with the settings of the run, the classes and the preprocessing as metadata."""
    from safetensors.torch import save

    tensors = {name: value.detach().cpu().contiguous().clone() for name, value in trained.model.state_dict().items()}
    metadata = {
        "format": FORMAT,
        "spec": trained.spec.to_json(),
        "preprocessing": trained.preprocessing.to_json(),
    }
    content = save(tensors, metadata)

    def write(part: Path) -> None:
        part.write_bytes(content)

    write_atomically(path, write)


def load_model(path: Path) -> TrainedModel:
    """Read what :func:`save_model` wrote; a run's folder stands for the file in it."""
    from safetensors import SafetensorError, safe_open

    place = path / MODEL_FILE if path.is_dir() else path
    if not place.is_file():
        raise InputError(
            f"{place} does not exist; MODEL must be a {MODEL_FILE} that 'classgrad train' wrote, or its folder"
        )
    try:
        with safe_open(place, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except SafetensorError as error:
        raise InputError(f"{place} is damaged or no safetensors file ({' '.join(str(error).split())})") from error
    if metadata.get("format") != FORMAT:
        raise InputError(f"{place} is no model of classgrad (its metadata does not say {FORMAT})")
    spec = RunSpec.from_json(metadata.get("spec", ""))
    preprocessing = Preprocessing.from_json(metadata.get("preprocessing", ""))
    _check_sizes(spec.model_options, tensors, place)
    try:
        model = make_model(spec, preprocessing)
    except (OverflowError, RuntimeError, TypeError) as error:
        raise InputError(f"{place}: its network cannot be made ({' '.join(str(error).split())[:200]})") from error
    return TrainedModel(_filled(model, tensors, place), preprocessing, spec)


def _check_sizes(options: Mapping[str, Any], tensors: Mapping[str, Tensor], place: Path) -> None:
    """Refuse options of a network far larger than the weights, which would be made before it is seen not to fit."""
    largest = max((size for tensor in tensors.values() for size in tensor.shape), default=0)
    lists = [value if isinstance(value, list) else [value] for value in options.values()]
    too_large = any(type(number) is int and number > largest for values in lists for number in values)
    if too_large or any(len(values) > max(1, len(tensors)) for values in lists):
        raise InputError(f"{place}: the weights do not fit the network they are said to be of ({dict(options)})")


def _filled(model: nn.Module, tensors: Mapping[str, Tensor], place: Path) -> nn.Module:
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{place}: the weights do not fit the network they are said to be of ({reason})") from error
    return model.eval()

"""Where the example gradients of ``classgrad theory noise`` come from: a trained model, or one that has not learnt."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from classgrad._errors import InputError
from classgrad.data import Dataset, DeviceData
from classgrad.models import build
from classgrad.theory import example_gradients
from classgrad.training import load_data, load_trained

RECORD = "run.npz"
MOST_BYTES = 4 * 2**30


@dataclass(frozen=True, eq=False)
class NoiseSource:
    """Example gradients of every class, majority first."""

    title: str
    classes: tuple[str, ...]
    gradients: tuple[Tensor, ...]

    def usual_sizes(self) -> list[int]:
        """Powers of two from the smallest batch that holds every class to all examples."""
        total = sum(map(len, self.gradients))
        powers = [2**k for k in range(1, 31) if len(self.classes) <= 2**k < total]
        return [*powers, total]


def trained_source(folder: Path, examples: int, generator: torch.Generator, data_dir: Path | None) -> NoiseSource:
    """Take the model that a run left, and the data it was trained on."""
    trained = load_trained(folder)
    data = load_data(trained.spec, data_dir=data_dir)
    title = f"{trained.spec.model} trained with {trained.spec.algorithm} for {trained.spec.steps} steps on {data.name}"
    return _gather(data, trained.model, examples, generator, title)


def drawn_source(data: Dataset, model: str | None, examples: int, generator: torch.Generator) -> NoiseSource:
    """Take a network with its initial parameters."""
    name = model or ("simple_cnn" if data.preprocessing.images else "mlp")
    network = build(name, len(data.classes), data.preprocessing.shape, generator=generator)
    return _gather(data, network.eval(), examples, generator, f"{name} at initialization on {data.name}")


def _gather(data: Dataset, model: nn.Module, examples: int, generator: torch.Generator, title: str) -> NoiseSource:
    chosen = [_chosen(data, label, examples, generator) for label in range(len(data.classes))]
    parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    needed = 8 * parameters * sum(map(len, chosen))
    if needed > MOST_BYTES:
        fits = MOST_BYTES // (8 * parameters)
        raise InputError(f"--examples must be at most {fits} for the {parameters:,} parameters; found {examples}")
    served = DeviceData(data.train, mean=data.mean, std=data.std, dtype=torch.float64)
    model = model.double()
    gradients = [example_gradients(model, *served.batch(indices)) for indices in chosen]
    order = sorted(range(len(chosen)), key=lambda label: -len(chosen[label]))
    return NoiseSource(title, tuple(data.classes[label] for label in order), tuple(gradients[label] for label in order))


def _chosen(data: Dataset, label: int, examples: int, generator: torch.Generator) -> Tensor:
    """Draw examples of a class: its share of those asked for, at least two."""
    members = (data.train.y == label).nonzero().squeeze(-1)
    if len(members) < 2:
        raise InputError(
            f"Class {data.classes[label]!r} should have at least 2 training examples. Found {len(members)}."
        )
    share = max(2, round(len(members) * min(1.0, examples / len(data.train))))
    return members[torch.randperm(len(members), generator=generator)[:share]]

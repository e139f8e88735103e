"""From a trainer at a measuring point to the series of the record."""

from __future__ import annotations

import json
import platform
import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor

from classgrad._version import __version__
from classgrad.data import Dataset
from classgrad.training._measure import ClassRows, batch_noise, evaluate, evaluating, flat
from classgrad.training._spec import RunSpec
from classgrad.training._trainer import Trainer
from classgrad.training._update import Update


class Measurements:
    """Measures a :class:`Trainer` at a point, and the step that follows it.

    Everything is done in evaluation mode and without augmentation, so that no training generator is touched.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._order = {name: data.y.argsort(stable=True) for name, data in trainer.data.items()}
        self._counted = (0, 0.0)  # steps and seconds at the last point
        self._known: tuple[int, dict[str, Tensor]] | None = None  # what the training set gave, and at which step
        self._rows: Tensor | None = None
        self._before: Tensor | None = None
        self._batch: dict[str, Tensor] = {}

    def point(self) -> dict[str, Tensor | float]:
        """Everything that is known at the present iterate."""
        trainer = self._trainer
        values: dict[str, Tensor | float] = {"seconds_per_step": self._pace(), "memory_bytes": _memory(trainer.device)}
        with evaluating(trainer.model):
            for name in trainer.data:
                found = self._train() if name == "train" else self._evaluate(name)
                values |= {f"{name}/{key}": value for key, value in found.items()}
            if trainer.spec.gradients and self.finite:
                values["gram"], self._rows = self._class_rows().gram(trainer.members)
        return values

    @property
    def finite(self) -> bool:
        """Whether the training loss is finite in every class that has examples."""
        return bool((self._train()["loss"].isfinite() | (self._trainer.counts == 0)).all())

    def before_step(self, indices: Tensor) -> None:
        """Measure the batch of the step that follows a point."""
        trainer = self._trainer
        self._before = flat(trainer.parameters)
        self._batch = {}
        if self._rows is None or trainer.row.full_batch:
            return
        labels = trainer.train.y[indices]
        members = [indices[labels == label] for label in range(trainer.classes)]
        with evaluating(trainer.model):
            batch = self._class_rows().of(members, range(trainer.classes))
        counts = torch.bincount(labels, minlength=trainer.classes)
        self._batch = batch_noise(batch, self._rows, counts, trainer.counts)

    def after_step(self, update: Update) -> dict[str, Tensor | float]:
        """Tell what the step after a point did: its weights, and how the class losses f^(l) changed in it."""
        trainer = self._trainer
        step = update.facts(trainer.classes)
        values: dict[str, Tensor | float] = {"lr": update.lr, **self._batch}
        if step.weights.dim() == 1:
            values["weights"] = _by_class(step.weights, step.classes, trainer.classes)
        if self._rows is not None and self._before is not None:
            moved = flat(trainer.parameters) - self._before
            values["predicted_change"] = self._rows.double() @ moved.double()
        assert self._known is not None
        start = self._known[1]["loss"]
        with evaluating(trainer.model):
            values["measured_change"] = (self._train()["loss"] - start) * trainer.counts.double() / len(trainer.train)
        self._rows = self._before = None
        return values

    def _train(self) -> dict[str, Tensor]:
        """Measure the training set at the present iterate, once."""
        if self._known is None or self._known[0] != self._trainer.step:
            self._known = (self._trainer.step, self._evaluate("train"))
        return self._known[1]

    def _evaluate(self, name: str) -> dict[str, Tensor]:
        trainer = self._trainer
        data = trainer.data[name]
        return evaluate(
            lambda part: trainer.forward(data, part), self._order[name], trainer.classes, trainer.spec.chunk
        )

    def _class_rows(self) -> ClassRows:
        trainer = self._trainer
        model, grads = trainer.class_gradients()
        model.eval()
        return ClassRows(grads, lambda part: trainer.forward(trainer.train, part, model=model), trainer.spec.chunk)

    def _pace(self) -> float:
        """Mean seconds of the updates since the last point."""
        trainer = self._trainer
        if trainer.device.type == "cuda":
            torch.cuda.synchronize(trainer.device)
        steps, seconds = trainer.step - self._counted[0], trainer.seconds - self._counted[1]
        self._counted = (trainer.step, trainer.seconds)
        return seconds / steps if steps > 0 else float("nan")


def every_step(update: Update, classes: int) -> dict[str, Tensor | float]:
    """Give what an update knows anyway: learning rate, f^(l) of the batch, norms where the rule asked for them."""
    step = update.facts(classes)
    values: dict[str, Tensor | float] = {"lr": update.lr, "loss": _by_class(step.losses, step.classes, classes)}
    if step.norms is not None:
        values["norms"] = _by_class(step.norms, step.classes, classes)
    return values


def run_meta(spec: RunSpec, dataset: Dataset, device: torch.device) -> dict[str, Any]:
    """Give the settings of the record."""
    return {
        **spec.labels(),
        "data": dataset.name,
        "protocol": spec.protocol,
        "classes": list(dataset.classes),
        "counts": list(dataset.counts["train"]),
        "fingerprint": dataset.fingerprint,
        "identity": spec.identity(dataset.fingerprint),
        "lr": float(spec.lr),
        "batch_size": len(dataset.train) if spec.row.full_batch else spec.batch_size,
        "steps": spec.steps,
        "seed": spec.seed,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "precision": spec.precision,
        "spec": json.loads(spec.to_json()),
        "versions": {
            "classgrad": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }


def _by_class(values: Tensor, present: Tensor, classes: int) -> Tensor:
    """Spread the values of the classes present over all classes, 0 for the others."""
    spread = torch.zeros(classes, dtype=torch.float64, device=values.device)
    spread[present.to(values.device)] = values.double()
    return spread


def _memory(device: torch.device) -> int:
    """Most bytes in use so far: on the device, or of the process."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    if sys.platform == "win32":
        return 0
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

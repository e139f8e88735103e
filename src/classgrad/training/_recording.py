"""From a trainer at a measuring point to the series of the record."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from classgrad._version import __version__
from classgrad.data import Dataset
from classgrad.training._measure import ROWS, ClassRows, batch_noise, evaluate, evaluating, flat
from classgrad.training._spec import RunSpec
from classgrad.training._trainer import Trainer
from classgrad.training._update import Update, by_class


class Measurements:
    """Measures a :class:`Trainer` at a point, and the step that follows it.

    Everything is done in evaluation mode and without augmentation, so that no training generator is touched.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._order = {name: data.y.argsort(stable=True) for name, data in trainer.data.items()}
        self._counted = trainer.step  # steps at the last point
        self._known: tuple[int, dict[str, Tensor]] | None = None  # what the training set gave, and at which step
        self._rows: Tensor | None = None
        self._before: Tensor | None = None
        self._batch: dict[str, Tensor] = {}

    def point(self) -> dict[str, Any]:
        """Everything that is known at the present iterate; what only later is known is a function."""
        trainer = self._trainer
        values: dict[str, Any] = {"seconds_per_step": self._pace(), "memory_bytes": _memory(trainer.device)}
        with evaluating(trainer.model):
            for name in trainer.data:
                found = self._train() if name == "train" else self._evaluate(name)
                values |= {f"{name}/{key}": value for key, value in found.items()}
            if trainer.spec.gradients and (trainer.gpu or self.finite):  # a GPU is not asked
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
        members = (
            [indices[labels == label] for label in range(trainer.classes)]
            if trainer.composition is None
            else torch.split(indices, list(trainer.composition))
        )
        with evaluating(trainer.model):
            batch = self._class_rows().of(members, range(trainer.classes))
        counts = (labels == torch.arange(trainer.classes, device=labels.device)[:, None]).sum(-1)
        self._batch = batch_noise(batch, self._rows, counts, trainer.counts)

    def after_step(self, update: Update) -> dict[str, Tensor | float]:
        """Tell what the step after a point did: its weights, and how the class losses f^(l) changed in it."""
        trainer = self._trainer
        step = update.facts(trainer.classes)
        values: dict[str, Tensor | float] = {"lr": update.lr, **self._batch}
        if step.weights.dim() == 1:
            values["weights"] = by_class(step.weights, step.classes, trainer.classes)
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
        return evaluate(lambda part: trainer.forward(data, part), self._order[name], trainer.classes, trainer.chunk)

    def _class_rows(self) -> ClassRows:
        trainer = self._trainer
        model, grads = trainer.class_gradients()
        model.eval()
        chunk = min(trainer.chunk, ROWS) if trainer.gpu else trainer.chunk
        return ClassRows(grads, lambda part: trainer.forward(trainer.train, part, model=model), chunk)

    def _pace(self) -> Callable[[], float]:
        """Mean seconds of the updates since the last point."""
        trainer = self._trainer
        trainer.clock.stop()
        steps, seconds = trainer.step - self._counted, trainer.clock.lap()
        self._counted = trainer.step

        def pace() -> float:
            lap = seconds()
            return lap / steps if steps > 0 else float("nan")

        return pace


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


def _memory(device: torch.device) -> int:
    """Most bytes in use so far: on the device, or of the process."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    if sys.platform == "win32":
        return 0
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

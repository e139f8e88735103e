"""A run in the making: model, data, batches, rule, optimizer, and one update after the other."""

from __future__ import annotations

import copy
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from classgrad.data import Dataset, DeviceData
from classgrad.gradients import ClassGradients, Step
from classgrad.rules import Rescale, Sum
from classgrad.theory import pcn_margin
from classgrad.training._batches import SAMPLERS, forever
from classgrad.training._divergence import Watch
from classgrad.training._measure import MAX_MEMORY, chunks, evaluating
from classgrad.training._models import make_model
from classgrad.training._numerics import dtype_of
from classgrad.training._optimizers import advance, current_lr, make_lr_scheduler, make_optimizer, set_lr
from classgrad.training._reservoir import Reservoir
from classgrad.training._schedules import Moment, schedule
from classgrad.training._spec import RunSpec
from classgrad.training._streams import global_state, restore_global_state, stream
from classgrad.training._update import PlainStep, Update

_LOOK_EVERY = 32  # updates on a GPU between two looks at whether they are finite


class Trainer:
    """Everything that changes while a run goes on, and the one update that all algorithms share.

    Dropout draws from torch's global generator, which is seeded here: make it within
    :func:`~classgrad.training._streams.forked`.
    """

    def __init__(self, spec: RunSpec, dataset: Dataset, device: torch.device) -> None:
        self.spec = spec
        self.row = spec.row
        self.device = device
        self.classes = len(dataset.classes)
        self.step = 0
        self.seconds = 0.0
        dtype = dtype_of(spec.precision)
        self.model = make_model(spec, dataset.preprocessing).to(device).train()
        self.data = {
            name: DeviceData(
                split,
                mean=dataset.mean,
                std=dataset.std,
                device=device,
                dtype=dtype,
                crop=spec.crop if name == "train" else 0,
                flip=spec.flip and name == "train",
                seed=stream(spec.seed, "augmentation"),
            )
            for name, split in dataset.splits.items()
        }
        self.train = self.data["train"]
        labels = dataset.train.y
        self.counts = torch.bincount(labels, minlength=self.classes).to(device)
        self.members = [(labels == label).nonzero().flatten().to(device) for label in range(self.classes)]
        generator = torch.Generator().manual_seed(stream(spec.seed, "batches"))
        self.sampler = SAMPLERS[self.row.batches](labels, spec.batch_size, generator)
        self._batches = forever(self.sampler, device)
        self.rule = self.row.make_rule()
        self.schedule = schedule(spec.schedule_name, spec.schedule_options)
        self._constant = spec.schedule_name == "constant"
        self.reservoir = Reservoir(stream(spec.seed, "iterate")) if self.row.returns == "drawn" else None
        needs_gram = self.schedule.needs_gram or self.reservoir is not None
        self._grads = (
            None
            if isinstance(self.rule, Sum) and not needs_gram
            else ClassGradients(self.model, self.rule, gram=needs_gram, max_memory=MAX_MEMORY)
        )
        self._copy: tuple[nn.Module, ClassGradients] | None = None
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = make_optimizer(spec.optimizer, self.parameters, spec.lr, spec.optimizer_options)
        self.scheduler = (
            make_lr_scheduler(spec.scheduler, self.optimizer, spec.scheduler_options) if spec.scheduler else None
        )
        self.watch = Watch(dataset.classes, every=_LOOK_EVERY if device.type == "cuda" else 1)
        torch.manual_seed(stream(spec.seed, "dropout"))

    @property
    def resumable(self) -> bool:
        """Whether the state is all there is: between two refreshes a ``Rescale`` rule holds more."""
        return not isinstance(self.rule, Rescale) or self.step % self.rule.every == 0

    def next_batch(self) -> Tensor:
        """Draw the example indices of the next update."""
        return next(self._batches)

    def update(self, indices: Tensor) -> Update:
        """Make one update: the gradient or the weighted class gradients, the step size, the optimizer's step."""
        start = time.perf_counter()
        seen = self._plain_backward(indices) if self._grads is None else self._class_backward(self._grads, indices)
        made = Update(self.step, self._step_size(seen.gram if isinstance(seen, Step) else None), seen)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.scheduler is not None:
            advance(self.scheduler, made.loss)
        self.watch.note(made)
        self.step += 1
        self.seconds += time.perf_counter() - start
        return made

    def class_gradients(self) -> tuple[nn.Module, ClassGradients]:
        """Give a model at the present iterate and its class gradients, for measuring.

        An algorithm that has no use for class gradients keeps its own model free of their hooks and gets a copy.
        """
        if self._grads is not None:
            return self.model, self._grads
        if self._copy is None:
            model = copy.deepcopy(self.model)
            self._copy = model, ClassGradients(model, self.rule, max_memory=MAX_MEMORY)
        self._copy[0].load_state_dict(self.model.state_dict())
        return self._copy

    def forward(
        self, data: DeviceData, indices: Tensor, *, augment: bool = False, model: nn.Module | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Logits of ``model`` (by default that in training), one loss per example, and labels."""
        logits, y = self._logits(model or self.model, data, indices, augment)
        return logits, F.cross_entropy(logits, y, reduction="none"), y

    def state_dict(self) -> dict[str, Any]:
        """Everything that the rest of the run depends on, as tensors and plain values."""
        return {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict() if self.scheduler else None,
            "sampler": self.sampler.state_dict(),
            "augmentation": self.train.state_dict(),
            "random": global_state(self.device),
            "reservoir": self.reservoir.state_dict() if self.reservoir else None,
            "gradients": self._grads.state_dict() if self._grads else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where :meth:`state_dict` was called."""
        self.step = state["step"]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        self.sampler.load_state_dict(state["sampler"])
        self._batches = forever(self.sampler, self.device)
        self.train.load_state_dict(state["augmentation"])
        restore_global_state(state["random"], self.device)
        if self.reservoir is not None:
            self.reservoir.load_state_dict(state["reservoir"])
        if self._grads is not None:
            self._grads.load_state_dict(state["gradients"])

    def close(self) -> None:
        """Remove the hooks from the model."""
        if self._grads is not None:
            self._grads.close()

    def _plain_backward(self, indices: Tensor) -> PlainStep:
        """Write the gradient of the batch's mean loss, as anyone would."""
        if len(indices) <= self.spec.chunk:
            return self._plain_part(indices, share=1.0)
        parts = [self._plain_part(part, len(part) / len(indices)) for part in chunks(indices, self.spec.chunk)]
        losses, logits, labels = zip(*parts, strict=True)
        return PlainStep(torch.stack(losses).sum(), torch.cat(logits), torch.cat(labels))

    def _plain_part(self, indices: Tensor, share: float) -> PlainStep:
        logits, y = self._logits(self.model, self.train, indices, augment=True)
        loss = F.cross_entropy(logits, y)
        if share < 1:
            loss = loss * share
        loss.backward()  # type: ignore[no-untyped-call]
        return PlainStep(loss, logits, y)

    def _class_backward(self, grads: ClassGradients, indices: Tensor) -> Step:
        """Write Σ_l w_l g_l; a batch of more than a chunk streams class by class."""
        if isinstance(self.rule, Rescale) and self.step % self.rule.every == 0:
            self._refresh(grads)
        step = grads.backward_through(
            lambda part, y: self.forward(self.train, part, augment=True)[1],
            indices,
            self.train.y[indices],
            chunk=self.spec.chunk if len(indices) > self.spec.chunk else None,
        )
        if self.reservoir is not None and step.gram is not None:
            self.reservoir.offer(self.step, float(pcn_margin(step.gram).amin()), self.model)
        return step

    def _refresh(self, grads: ClassGradients) -> None:
        """Renew the full-batch class gradients that ``Rescale`` projects on (Alg. 5)."""
        order = torch.cat(self.members)
        with evaluating(self.model):
            grads.refresh(
                lambda indices, y: self.forward(self.train, indices)[1],
                ((part, self.train.y[part]) for part in chunks(order, self.spec.chunk)),
            )

    def _logits(self, model: nn.Module, data: DeviceData, indices: Tensor, augment: bool) -> tuple[Tensor, Tensor]:
        x, y = data.batch(indices, augment=augment)
        if self.spec.precision != "bf16":
            return model(x), y
        with torch.autocast(self.device.type, torch.bfloat16):
            logits: Tensor = model(x)
        return logits.to(x.dtype), y

    def _step_size(self, gram: Tensor | None) -> float:
        if self.scheduler is not None or self._constant:
            return current_lr(self.optimizer)
        lr = self.schedule(
            Moment(self.step, self.spec.steps, self.sampler.epoch, self.spec.lr, gram, self.spec.schedule_options)
        )
        set_lr(self.optimizer, lr)
        return lr

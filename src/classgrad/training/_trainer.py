"""A run in the making: model, data, batches, rule, optimizer, and one update after the other."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from classgrad._errors import InputError
from classgrad.data import Dataset, DeviceData
from classgrad.gradients import ClassGradients, RecordedUpdate, Step, why_not
from classgrad.rules import Rescale, Sum
from classgrad.theory import pcn_margin
from classgrad.training._batches import SAMPLERS, composition, forever
from classgrad.training._chunk import ON_CPU, resolve_chunk
from classgrad.training._clock import Clock
from classgrad.training._compiled import Forward, backward_again, compiled, compiled_between, twin
from classgrad.training._divergence import Watch
from classgrad.training._mailbox import Mailbox
from classgrad.training._measure import MAX_MEMORY, chunks, evaluating
from classgrad.training._models import make_model, with_channels_last
from classgrad.training._numerics import dtype_of
from classgrad.training._optimizers import advance, current_lr, make_lr_scheduler, make_optimizer, set_lr
from classgrad.training._reservoir import Reservoir
from classgrad.training._schedules import Moment, schedule
from classgrad.training._spec import RunSpec
from classgrad.training._streams import global_state, restore_global_state, stream
from classgrad.training._update import Update
from classgrad.training._work import Work

_LOOK_EVERY = 32  # updates on a GPU that are looked at together
_LOOK_EVERY_PASS = 4  # those of the whole training set, which take long
_LARGE_CLASS = 256  # examples from which on a class by itself keeps a GPU busy


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
        dtype = dtype_of(spec.precision)
        self.model = make_model(spec, dataset.preprocessing).to(device).train()
        if spec.channels_last:
            self.model = with_channels_last(self.model, dataset.preprocessing.shape)
        self.data = {
            name: DeviceData(
                split,
                mean=dataset.mean,
                std=dataset.std,
                device=device,
                dtype=dtype,
                channels_last=spec.channels_last,
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
        self.composition = composition(self.sampler, labels, self.classes)
        self.rule = self.row.make_rule()
        self.schedule = schedule(spec.schedule_name, spec.schedule_options)
        self._constant = spec.schedule_name == "constant"
        self.reservoir = Reservoir(stream(spec.seed, "iterate")) if self.row.returns == "drawn" else None
        self._copy: tuple[nn.Module, ClassGradients] | None = None
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = make_optimizer(spec.optimizer, self.parameters, spec.lr, spec.optimizer_options)
        self.scheduler = (
            make_lr_scheduler(spec.scheduler, self.optimizer, spec.scheduler_options) if spec.scheduler else None
        )
        least = ON_CPU if self._batch_normed else 0 if self.row.full_batch else spec.batch_size
        width = dataset.train.x[0].numel()
        self.chunk = resolve_chunk(spec.chunk, self._probe, torch.cat(self.members), width, least)
        self._grads, self._work = self._make_work()
        self.clock = Clock(device)
        self.mailbox = Mailbox(late=self.gpu and self.reservoir is None)
        look_every = _LOOK_EVERY_PASS if self.row.full_batch else _LOOK_EVERY
        self.watch = Watch(
            dataset.classes, self.mailbox, every=look_every if self.gpu and self.reservoir is None else 1
        )
        torch.manual_seed(stream(spec.seed, "dropout"))

    @property
    def gpu(self) -> bool:
        """Whether updates run on a GPU, which is kept busy and never waited for."""
        return self.device.type == "cuda"

    @property
    def resumable(self) -> bool:
        """Whether the state is all there is: between two refreshes a ``Rescale`` rule holds more."""
        return not isinstance(self.rule, Rescale) or self.step % self.rule.every == 0

    def next_batch(self) -> Tensor:
        """Draw the example indices of the next update."""
        return next(self._batches)

    def update(self, indices: Tensor) -> Update:
        """Make one update: the gradient or the weighted class gradients, the step size, the optimizer's step."""
        if isinstance(self.rule, Rescale) and self.step % self.rule.every == 0:
            self._refresh()
        inside = self._work.updates
        lr = self._step_size(None) if inside else 0.0
        seen = self._work(indices)
        gram = seen.gram if isinstance(seen, Step) else None
        if self.reservoir is not None and gram is not None:
            self.reservoir.offer(self.step, float(pcn_margin(gram).amin()), self.model)
        if not inside:
            lr = self._step_size(gram)
            try:
                self.optimizer.step()
            except TypeError as error:  # an option of the wrong type that only a step looks at
                raise InputError(f"Optimizer {self.spec.optimizer!r} cannot make a step: {error}") from error
            self.optimizer.zero_grad()
        made = Update(self.step, lr, seen)
        if self.scheduler is not None:
            advance(self.scheduler, made)
        self.watch.note(made)
        self.step += 1
        return made

    @property
    def busy_seconds(self) -> float | None:
        """How long the GPU worked on updates that were replayed as CUDA graphs; None where none were."""
        return self._work.busy_seconds() if self._work.recordings else None

    def class_gradients(self) -> tuple[nn.Module, ClassGradients]:
        """Give a model at the present iterate and its class gradients, for measuring.

        An algorithm that has no use for them, or takes the classes one by one, keeps its own model free of their hooks
        and gets a copy.
        """
        if self._grads is not None and self._grads.engine != "split":
            return self.model, self._grads
        if self._copy is None:
            model = copy.deepcopy(self.model)
            self._copy = model, ClassGradients(model, self.rule, max_memory=MAX_MEMORY)
        self._copy[0].load_state_dict(self.model.state_dict())
        return self._copy

    def forward(
        self, data: DeviceData, indices: Tensor, *, augment: bool = False, model: Forward | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Logits of ``model`` (by default that in training), one loss per example, and labels."""
        logits, y = self._logits(model or self.model, data, indices, augment)
        return logits, F.cross_entropy(logits, y, reduction="none"), y

    def state_dict(self) -> dict[str, Any]:
        """Everything that the rest of the run depends on, as tensors and plain values."""
        return {
            "step": self.step,
            "chunk": self.chunk,
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
        if state.get("chunk", self.chunk) != self.chunk:  # the order of sums, and so the last bits, depend on it
            self.close()
            self.chunk = state["chunk"]
            self._grads, self._work = self._make_work()
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
        """Remove the hooks from the model and let go of what was recorded."""
        self._work.close()
        if self._grads is not None:
            self._grads.close()

    def _make_work(self) -> tuple[ClassGradients | None, Work]:
        """Make the class gradients, unless the plain gradient is all that is asked for, and the work on batches."""
        spec = self.spec
        gram = self.schedule.needs_gram or self.reservoir is not None
        plain = isinstance(self.rule, Sum) and not gram
        by_class = self.gpu and not plain and not gram and self._one_by_one()
        layered = spec.compile and not (plain or by_class)
        network: Forward = self.model
        quiet: Forward = self.model
        if layered:
            network = compiled_between(self.model)
            quiet = compiled(twin(self.model).eval())  # free of the hooks that the class gradients need
        elif spec.compile:
            network = compiled(self.model)
        engine: Literal["split", "auto"] = "split" if by_class else "auto"
        grads = None
        if not plain:
            # Recordings remember norms for declared classes alone.
            classes = self.classes if self.gpu and self.rule.refresh > 1 else None
            grads = ClassGradients(
                self.model, self.rule, engine=engine, classes=classes, gram=gram, max_memory=MAX_MEMORY
            )
        # Step sizes and iterates that depend on the Gram matrix come between the gradients and the update.
        inside = self.gpu and not gram and why_not(self.optimizer) is None
        work = Work(
            self.parameters,
            self.train.y,
            grads,
            lambda indices: self._logits(network, self.train, indices, augment=True),
            lambda indices: self.forward(self.train, indices, model=quiet)[1],
            within=backward_again if layered else nullcontext,
            counts=self.composition,
            chunk=self.chunk,
            by_class=by_class,
            update=RecordedUpdate(self.optimizer) if inside else None,
            capture=spec.capture and self.gpu and (grads is None or by_class or self._steady()),
            generators=[self.train.generator] if spec.crop or spec.flip else [],
        )
        return grads, work

    def _steady(self) -> bool:
        """Whether class gradients are made by the same operations at every step, none of which waits for the device."""
        mixes = any(isinstance(module, _BatchNorm) for module in self.model.modules())
        return not mixes and self.rule.per == "model"

    def _one_by_one(self) -> bool:
        """Whether full batches are taken class by class: no more work than a plain step where classes are large."""
        if not self.row.full_batch or not self.rule.separable:
            return False
        if self.rule.refresh > 1 or self._batch_normed:
            return len(self.train) > self.chunk
        return len(self.train) > min(self.chunk, _LARGE_CLASS * int((self.counts > 0).sum()))

    @property
    def _batch_normed(self) -> bool:
        """Whether what goes through the network together has its statistics in common."""
        return any(isinstance(module, _BatchNorm) for module in self.model.modules())

    def _probe(self, indices: Tensor) -> None:
        """Run forward and backward once, for the memory it takes."""
        with evaluating(self.model):
            torch.autograd.grad(self.forward(self.train, indices)[1].sum(), self.parameters, allow_unused=True)

    def _refresh(self) -> None:
        """Renew the full-batch class gradients that ``Rescale`` projects on (Alg. 5)."""
        order = torch.cat(self.members)
        with evaluating(self.model):
            if self.gpu:
                self._work.refresh(order, [len(indices) for indices in self.members])
                return
            assert self._grads is not None
            self._grads.refresh(
                lambda indices, y: self.forward(self.train, indices)[1],
                ((part, self.train.y[part]) for part in chunks(order, self.chunk)),
            )

    def _logits(self, model: Forward, data: DeviceData, indices: Tensor, augment: bool) -> tuple[Tensor, Tensor]:
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

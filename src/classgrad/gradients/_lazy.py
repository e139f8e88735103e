"""Class norms that are taken every so often and remembered in between."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from classgrad.gradients._layout import ClassLayout
from classgrad.gradients._step import Step
from classgrad.rules import Rule

_FACTS, _RATIOS = "facts", "ratios"
"""f^(l) of the latest step, and 1 for each class that went well in it; ‖g_l‖/q_l of the latest exact one."""


class LazyNorms:
    """The class norms of the last exact step, and whether the next step may go by them.

    Batches differ more than a step changes, so what is remembered of a class is ‖g_l‖/q_l with a number q_l that can be
    had from the losses of any batch: q_l = 1/n Σ (1 − exp(−f_i)) over the class's examples, with cross-entropy the
    probability that is missing from them, to which the gradients of the logits are proportional; or n_l/n, which holds
    the norm of the mean gradient as it was. Whether a class's loss moved is decided from the step before, so that a
    GPU is never waited for beyond that step, and every device decides alike. In doubt the answer is exact.

    A step has a part on the device (:meth:`keep`), which can be recorded in a CUDA graph, and one on the host
    (:meth:`note`), which comes after every step, replayed or not. Recordings write to the memory that they found, so
    what is kept of one kind stays where it is as long as the object lives, which is as long as they do.
    """

    def __init__(self, refresh: int, drift: float, follow: bool) -> None:
        self.refresh = refresh
        self.drift = drift
        self.follow = follow
        self._age = 0
        """Steps made since the norms were taken, that one included; 0 where there are none."""
        self._underway = False
        self._labels: list[int] = []
        self._sizes: list[int] = []
        self._trained: list[bool] = []
        self._ratios: Tensor | None = None
        self._memory: dict[Hashable, Tensor] = {}
        self._told = torch.empty(0)
        self._arrived: torch.cuda.Event | None = None
        self._unread: list[int] | None = None
        """The class sizes of the latest step, until its facts have been read."""
        self._base: list[float] = []
        """Mean loss of each class at the exact step; nan for a class that has no norm from it."""
        self._latest: list[float] = []
        """The same of the latest step; nan for a class that was not in it, inf for one that was not finite."""

    def lazy(self, layout: ClassLayout, trained: Sequence[bool]) -> bool:
        """Say whether a step on such a batch, of such parameters, may go by the remembered norms."""
        if trained != self._trained:
            self.forget()
            self._trained = list(trained)
        if self._underway or not 0 < self._age < self.refresh or layout.labels != self._labels:
            return False
        if self._ratios is None or self._ratios.device != layout.index.device:
            return False
        self._read()
        rows = zip(layout.sizes, self._sizes, self._base, self._latest, strict=True)
        return not any(
            (size and (math.isnan(base) or _moved(then, size, self.drift)))
            or (not math.isnan(latest) and (math.isinf(latest) or _moved(base, latest, self.drift)))
            for size, then, base, latest in rows
        )

    def extents(self, losses: Tensor, layout: ClassLayout) -> Tensor:
        """Return q_l of a batch."""
        losses = losses.detach().to(torch.promote_types(losses.dtype, torch.float32))
        each = -torch.expm1(-losses) if self.follow else torch.ones_like(losses)
        return layout.sum(each) / layout.examples

    def norms(self, extents: Tensor) -> Tensor:
        """Return the norms to go by in a batch with such q_l."""
        assert self._ratios is not None
        return self._ratios * extents

    @property
    def source(self) -> Hashable:
        """What a recording that goes by the norms is told apart by: it reads them where they lie."""
        return self, None if self._ratios is None else self._ratios.data_ptr()

    def begin(self) -> None:
        """Take note that a step goes on: after one that fails, and is never noted, the next is exact."""
        self._underway = True

    def forget(self) -> None:
        """Make the next step exact."""
        self._age = 0

    def keep(self, step: Step, extents: Tensor) -> None:
        """Write down what a step saw, on its device and without waiting for it."""
        good = step.finite & (extents > 0)
        if step.norms is not None:
            good = good & (step.norms > 0)
        # Of one type whatever the losses are, so that whoever replays a recording knows where it wrote them.
        self._held(_FACTS, torch.stack((step.losses.float(), good.float())))
        if step.norms is not None:
            self._ratios = self._held(_RATIOS, step.norms / extents.where(extents > 0, 1))

    def note(self, layout: ClassLayout, exact: bool) -> None:
        """Count a step whose facts are kept, and send for them."""
        facts = self._memory[_FACTS, torch.Size((2, len(layout))), torch.float32, layout.index.device]
        if exact:
            self._age = 0
            self._labels, self._sizes, self._base = layout.labels, layout.sizes, []
        self._underway = False
        self._age += 1
        self._unread = layout.sizes
        if not facts.is_cuda:
            self._told = facts.clone()
            return
        if self._arrived is None or self._told.shape != facts.shape:
            self._told = torch.empty(facts.shape, dtype=facts.dtype, pin_memory=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._told.copy_(facts, non_blocking=True)
        self._arrived.record(torch.cuda.current_stream(facts.device))

    def state_dict(self) -> dict[str, Any]:
        """Give everything the next decision depends on, as a tensor and plain values; nothing if there is nothing."""
        if self._underway or not self._age or self._ratios is None:
            return {}
        self._read()
        return {
            "age": self._age,
            "labels": list(self._labels),
            "sizes": list(self._sizes),
            "trained": list(self._trained),
            "ratios": self._ratios.clone(),
            "base": list(self._base),
            "latest": list(self._latest),
        }

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        """Take up where :meth:`state_dict` was called."""
        self._unread, self._underway = None, False
        self._age = state.get("age", 0)
        if self._age:
            self._labels, self._sizes, self._trained = state["labels"], state["sizes"], state["trained"]
            self._base, self._latest = state["base"], state["latest"]
            self._ratios = self._held(_RATIOS, state["ratios"].to(device))

    def _held(self, use: str, values: Tensor) -> Tensor:
        """Return the values in the memory for such values."""
        key = (use, values.shape, values.dtype, values.device)
        place = self._memory.get(key)
        if place is None:
            place = self._memory[key] = torch.empty_like(values)
        return place.copy_(values)

    def _read(self) -> None:
        """Take in the facts of the latest step; on a GPU this waits for that step and no longer."""
        sizes, self._unread = self._unread, None
        if sizes is None:
            return
        if self._arrived is not None:
            self._arrived.synchronize()
        losses, good = self._told.tolist()
        first, total = not self._base, sum(sizes)
        bad = math.nan if first else math.inf
        self._latest = [
            math.nan if not size else loss * total / size if well and math.isfinite(loss) else bad
            for loss, well, size in zip(losses, good, sizes, strict=True)
        ]
        if first:
            self._base = self._latest


def lazy_norms(rule: Rule) -> LazyNorms | None:
    """Return what a rule with ``refresh`` needs, if it is one whose weights come from the model's class norms alone."""
    lazy = rule.refresh > 1 and rule.needs == {"norms"} and rule.per == "model"
    return LazyNorms(rule.refresh, rule.drift, rule.follow) if lazy else None


def _moved(before: float, after: float, factor: float) -> bool:
    """Say whether a number changed by more than a factor, which a change of sign always is.

    >>> _moved(1.0, 2.5, 2.0), _moved(3.0, 2.0, 2.0), _moved(0.0, 0.0, 2.0), _moved(0.0, 1e-9, 2.0)
    (True, False, False, True)
    """
    low, high = sorted((abs(before), abs(after)))
    return not math.isinf(factor) and (before * after < 0 or not high <= factor * low)

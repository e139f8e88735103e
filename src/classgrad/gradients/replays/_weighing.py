"""The weighted sums of class gradients that were not made, as a recording: the last of a step."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from classgrad.gradients._layout import ClassLayout
from classgrad.gradients.replays._outcomes import Outcome, tensors_behind
from classgrad.gradients.replays._recorder import Recorder, Static, Written
from classgrad.gradients.terms._scratch import Area
from classgrad.gradients.terms._terms import Memory


class Weighing:
    """What is launched for class gradients that follow from examples, by kernels alone, when the weights are known.

    It is apart from what makes the weights, so that the class gradients that were made, and are weighed by then, can be
    let go before these directions come.
    """

    def __init__(self, layout: ClassLayout, outs: Sequence[Tensor]) -> None:
        self._layout = layout.renewed()
        # as the kernels read them
        self._weights = torch.empty(len(layout), device=layout.index.device, dtype=torch.float32)
        self._written = Written(outs)
        self._replay: Callable[[], None]

    def record(
        self, recorder: Recorder, outcomes: Sequence[Outcome], memory: Memory, outs: Sequence[Tensor], area: Area
    ) -> bool:
        """Record it, reading small inputs where the end of the step has brought them; say whether it could be done."""
        tensors = tensors_behind(outcomes)
        inputs = Static.of(tensors, lambda _, like: area.fresh_like("input", like)).stand_ins(tensors)
        memory = copy.copy(memory)
        memory.scratch = area
        recorded = recorder.record(lambda: self._work(outcomes, inputs, memory, self._written.places(outs)))
        if recorded is None or not area.complete:
            return False
        self._replay = recorded[0]
        return True

    def _work(
        self, outcomes: Sequence[Outcome], tensors: Sequence[Tensor], memory: Memory, outs: Sequence[Tensor]
    ) -> None:
        left = iter(outs)
        first = 0
        for outcome in outcomes:
            count = len(outcome.tensors)
            for _, term in outcome.not_made(self._layout, memory, tensors[first : first + count]):
                if term.at_once:
                    term.weigh_into(self._weights, next(left))
            first += count

    def replay(self, weights: Tensor, outs: Sequence[Tensor]) -> list[Tensor]:
        """Launch it; return the directions."""
        self._weights.copy_(weights)
        self._replay()
        return self._written.found(outs)

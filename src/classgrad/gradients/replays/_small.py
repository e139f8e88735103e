"""Work on small tensors alone, as a recording."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

import torch
from torch import Tensor

from classgrad.gradients._layout import ClassLayout
from classgrad.gradients.replays._packed import Packed, Values
from classgrad.gradients.replays._recorder import Recorder, Static

Work = Callable[..., Values]
"""What is done, with the layout of a batch and tensors that follow from it."""

_numbers = count()


class Small:
    """Brings small tensors to where a recording reads them; what it makes stays where it is until the next replay."""

    def __init__(self, work: Work, layout: ClassLayout, inputs: Sequence[Tensor]) -> None:
        self.number = next(_numbers)
        """Never given twice."""
        self._inputs = Static.of(inputs, lambda _, like: torch.empty_like(like))
        # Made once to have the memory that it is written to, which must not be the recordings' own.
        self.made = Packed(work(layout.renewed(), *inputs))
        self._replay: Callable[[], None]

    def record(self, recorder: Recorder, work: Work, layout: ClassLayout, inputs: Sequence[Tensor]) -> bool:
        """Record it; say whether that could be done."""
        given = self._inputs.stand_ins(inputs)
        recorded = recorder.record(lambda: self.made.fill(work(layout.renewed(), *given)))
        if recorded is None:
            return False
        self._replay = recorded[0]
        return True

    def replay(self, inputs: Sequence[Tensor]) -> None:
        """Launch it."""
        self._inputs.fill(inputs)
        self._replay()

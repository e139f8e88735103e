"""Class gradients of the parameters of which something was made before it came to the examples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from classgrad._errors import InputError
from classgrad.gradients._layout import ClassLayout
from classgrad.gradients.engines._joint import kept_terms
from classgrad.gradients.engines._places import Place, Places
from classgrad.gradients.terms._terms import Memory, Term


class Below:
    """Adds up the class gradients of what was made of these parameters, and sends them on, class after class."""

    def __init__(self, places: Places, layout: ClassLayout, memory: Memory) -> None:
        self._parameters = places.below
        self._layout = layout
        self._memory = memory
        self._made: dict[tuple[Any, int], Tensor] = {}
        self._needed = len(layout) * places.held
        if not memory.take(self._needed):  # at first, so that what comes in the meantime does not take it
            raise InputError(
                f"The class gradients of {len(self._parameters)} parameters and of what is made of them take "
                f"{self._needed} bytes, more than `max_memory` = {memory.limit}; raise it, or use a rule that needs "
                "norms only."
            )

    def add(self, place: Place, term: Term) -> None:
        """Note the class gradients of what came to a place."""
        given = place.use.given
        found = term.dense(0, term.classes).view(-1, *given.shape).to(given.dtype)
        source = place.source
        self._made[source] = self._made[source] + found if source in self._made else found

    def terms(self) -> dict[nn.Parameter, Term]:
        """Return those of the parameters."""
        self._memory.left += self._needed
        if not self._made:
            return {}
        return kept_terms(self._passes(), self._layout, self._parameters, self._memory)

    def _passes(self) -> Iterator[Sequence[Tensor | None]]:
        edges = [GradientEdge(*source) for source in self._made]
        for position, size in enumerate(self._layout.sizes):
            given = [each[position] for each in self._made.values()]
            found: Sequence[Tensor | None] = [None] * len(self._parameters)
            if size:
                with torch.autograd.set_multithreading_enabled(False):  # as in the pass before, see gradients_of
                    found = torch.autograd.grad(edges, self._parameters, given, retain_graph=True, allow_unused=True)
            yield [g if g is None else g.to_dense() for g in found]

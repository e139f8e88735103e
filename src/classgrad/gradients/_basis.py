"""What all ways to a step stand on: the model, the rule and how class gradients are made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from classgrad._errors import InputError
from classgrad.gradients._accumulate import Accumulator
from classgrad.gradients._checks import check_labels, check_losses
from classgrad.gradients._combine import Reference, Wishes, class_losses, refuse, scope_of
from classgrad.gradients._layout import ClassLayout, Layouts
from classgrad.gradients._parameters import own_parameters
from classgrad.gradients._step import Step
from classgrad.gradients._stream import ClassStream
from classgrad.gradients._write import sparse_parameters
from classgrad.gradients.engines._engines import Engines
from classgrad.gradients.engines._graph import NO_GRAPH, Graph, read_graph
from classgrad.rules import Rule


class Basis:
    """The settings of a :class:`ClassGradients`, and what follows from them for any batch."""

    def __init__(
        self,
        model: nn.Module,
        rule: Rule,
        engines: Engines,
        classes: Tensor | None,
        wishes: Wishes,
        group: ProcessGroup | None,
    ) -> None:
        self.model = model
        self.rule = rule
        self.engines = engines
        self.classes = classes
        self.wishes = wishes
        self.group = group
        self.max_memory = engines.max_memory
        self.layout_of = Layouts(classes)
        self.sparse = sparse_parameters(model)
        self.reference: Reference | None = None
        """The full-batch class gradients that ``Rescale`` projects on, once there are any."""
        self._forms: dict[int, list[tuple[int, int]]] = {}

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters that take part now: those that require gradients."""
        return [p for p in own_parameters(self.model) if p.requires_grad]

    @property
    def asks_gram(self) -> bool:
        """Whether anybody wants the Gram matrix."""
        return self.wishes.gram or "gram" in self.rule.needs

    def enter(self, losses: Tensor, y: Tensor | ClassLayout) -> ClassLayout:
        """Check what a step is given and lay out its labels, if they are not already."""
        if isinstance(y, ClassLayout):
            check_losses(losses)
            return y
        return self.layout_of(self.check(losses, y))

    def check(self, losses: Tensor, y: Tensor) -> Tensor:
        """Return the labels as int64, or raise for what no step can be made of."""
        if self.engines.closed:
            raise InputError("This ClassGradients was closed; make a new one.")
        check_losses(losses)
        return check_labels(y, len(losses), losses.device)

    @contextmanager
    def graph(self, losses: Tensor, needed: bool = True) -> Iterator[Graph]:
        """Read the graph of a step; no gradients and no autocast while it is worked on, and no trace of it after."""
        kind = losses.device.type
        mixed = torch.is_autocast_enabled(kind)
        with torch.no_grad(), torch.autocast(kind, enabled=False) if mixed else nullcontext():
            graph = read_graph(losses, self._forms) if needed or self.engines.holding else NO_GRAPH
            self.engines.watch()
            try:
                yield graph
                if graph is not NO_GRAPH:
                    self.engines.check(graph)
            finally:
                self.engines.release(graph)

    def stream(self, total: int) -> ClassStream:
        """Return what takes the classes of a step one by one, ``total`` examples in all."""
        scopes = scope_of(self.parameters, self.model, self.rule)
        declared = [] if self.classes is None else self.classes.tolist()
        return ClassStream(scopes, self.rule, self.wishes, total, declared, self.reference)

    def add_batch(self, sums: Accumulator, losses: Tensor, y: Tensor) -> None:
        """Add the class sums of a batch."""
        layout = self.enter(losses, y)
        if layout.examples:
            with self.graph(losses) as graph:
                self.add(sums, losses, layout, graph, 1.0)

    def add(self, sums: Accumulator, losses: Tensor, layout: ClassLayout, graph: Graph, scale: Tensor | float) -> None:
        """Add the class sums of a batch whose graph is read, made with losses times ``scale``."""
        parameters = self.parameters
        plan = self.engines.plan(losses, layout, graph, parameters)
        terms = self.engines.terms(losses, layout, plan, parameters, scale / layout.examples)
        sums.add(terms, class_losses(losses, layout), layout, scale / layout.examples)

    def reduce(self, sums: Accumulator) -> None:
        """Add up over the processes that share the batch."""
        if self.group is not None and self.classes is not None:
            sums.reduce(self.group, self.classes.tolist(), self.parameters)

    def nothing(self, losses: Tensor, layout: ClassLayout) -> Step:
        """Return the step of an empty batch."""
        zeros = losses.new_zeros(len(layout)).detach()
        step = Step(layout.classes.clone(), layout.counts.clone(), zeros, zeros, zeros == 0, zeros)
        refuse(step, self.wishes)
        return step

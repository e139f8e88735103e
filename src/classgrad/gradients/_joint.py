"""The reference engine: one forward, one backward per class."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from classgrad._errors import InputError
from classgrad.gradients._layout import ClassLayout
from classgrad.gradients._terms import Dense, Memory, Term


def class_passes(
    losses: Tensor, layout: ClassLayout, parameters: Sequence[nn.Parameter], seed: Tensor | float, keep_graph: bool
) -> Iterator[list[Tensor | None]]:
    """Yield, class after class, the gradients of seed × Σ losses of that class; None for a parameter out of reach.

    Exact for any model, also where layers mix examples: class l's gradient is that of its own losses, through the
    statistics of the whole batch.
    """
    present = [position for position, size in enumerate(layout.sizes) if size]
    for position in range(len(layout)):
        if not layout.sizes[position]:
            yield [None] * len(parameters)
            continue
        seeds = (layout.index == position).to(losses.dtype) * seed
        retain = keep_graph or position != present[-1]
        yield list(gradients_of(losses, parameters, seeds, retain))


def gradients_of(
    losses: Tensor, inputs: Sequence[object], seeds: Tensor, retain_graph: bool
) -> tuple[Tensor | None, ...]:
    """Return torch.autograd.grad with the errors a user can mend in one line."""
    if not inputs:
        return ()
    try:
        return torch.autograd.grad(losses, inputs, seeds, retain_graph=retain_graph, allow_unused=True)  # type: ignore[arg-type]
    except RuntimeError as error:
        if "backward through the graph a second time" in str(error):
            raise InputError(
                "Parameter `losses` should be fresh. Found one whose graph a backward pass already used; "
                "run the forward again."
            ) from None
        if "Checkpointing is not compatible with .grad()" in str(error):
            raise InputError(
                "Gradient checkpointing should use torch.utils.checkpoint with use_reentrant=False; the reentrant kind "
                "hides its layers from autograd."
            ) from None
        raise


def joint_terms(
    losses: Tensor,
    layout: ClassLayout,
    parameters: Sequence[nn.Parameter],
    seed: Tensor | float,
    memory: Memory,
    keep_graph: bool = False,
) -> dict[nn.Parameter, Term]:
    """Return the class gradients of the parameters, all kept; refuse if that exceeds the memory limit."""
    needed = len(layout) * sum(p.numel() * p.element_size() for p in parameters)
    if not memory.take(needed):
        raise InputError(
            f"{len(layout)} class gradients take {needed / 2**20:.1f} MiB, more than the {memory.left / 2**20:.1f} MiB "
            "left of `max_memory`; raise it, or use a rule that needs norms only."
        )
    kept = [p.new_zeros(len(layout), *p.shape) for p in parameters]
    reached = [False] * len(parameters)
    for position, gradients in enumerate(class_passes(losses, layout, parameters, seed, keep_graph)):
        for i, gradient in enumerate(gradients):
            if gradient is not None:
                kept[i][position] = gradient
                reached[i] = True
    return {p: Dense(k, memory) for p, k, r in zip(parameters, kept, reached, strict=True) if r}

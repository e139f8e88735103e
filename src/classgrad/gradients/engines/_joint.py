"""The reference engine: one forward, one backward per class."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from classgrad._errors import InputError
from classgrad.gradients._layout import ClassLayout
from classgrad.gradients.terms._terms import Dense, Memory, Term


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
        yield [g if g is None else g.to_dense() for g in gradients_of(losses, parameters, seeds, retain)]


def gradients_of(
    losses: Tensor, inputs: Sequence[object], seeds: Tensor, retain_graph: bool
) -> tuple[Tensor | None, ...]:
    """Return torch.autograd.grad with the errors a user can mend in one line."""
    if not inputs:
        return ()
    # By this thread, also on a GPU: hooks in Python run sooner where their thread need not be changed to.
    with fresh(), torch.autograd.set_multithreading_enabled(False):
        return torch.autograd.grad(losses, inputs, seeds, retain_graph=retain_graph, allow_unused=True)  # type: ignore[arg-type]


@contextmanager
def fresh() -> Iterator[None]:
    """Tell in one line if a graph was used up before."""
    try:
        yield
    except RuntimeError as error:
        if "backward through the graph a second time" in str(error):
            raise InputError(
                "Parameter `losses` should be fresh. Found one whose graph a backward pass already used; "
                "run the forward again."
            ) from None
        raise


def distinct(gradients: dict[nn.Parameter, Tensor]) -> dict[nn.Parameter, Tensor]:
    """Return gradients that share no memory: autograd may give one tensor to two parameters, or expand one number."""
    seen: set[int] = set()
    out = {}
    for p, gradient in gradients.items():
        pointer = 0 if gradient.is_sparse else gradient.data_ptr()
        shared = not gradient.is_sparse and (pointer in seen or 0 in gradient.stride())
        out[p] = gradient.clone(memory_format=torch.contiguous_format) if shared else gradient
        seen.add(pointer)
    return out


def all_finite(gradients: Iterable[Tensor]) -> Tensor:
    """Return whether all elements of all gradients are finite, as a tensor: a GPU is not waited for."""
    values = _elements(gradients)
    # A finite sum has finite terms, and costs a CPU a twentieth of the largest element; one that is not may overflow.
    if all(not v.is_cuda and bool(v.sum().isfinite()) for v in values):
        return torch.tensor(True)
    return is_finite(largest(values, like=values[0]))


def largest(gradients: Iterable[Tensor], like: Tensor) -> Tensor:
    """Return the largest element by size, NaN if there is one; without any 0, ``like`` what is given."""
    values = _elements(gradients)
    if len(values) > 1:
        return torch.nn.utils.get_total_norm(values, torch.inf)
    top: Tensor = torch.linalg.vector_norm(values[0], torch.inf) if values else like.new_zeros(())
    return top


def _elements(gradients: Iterable[Tensor]) -> list[Tensor]:
    """Return the gradients that have any, without the zeros of sparse ones."""
    values = [g.coalesce().values() if g.is_sparse else g for g in gradients]
    return [v for v in values if v.numel()]


def is_finite(number: Tensor) -> Tensor:
    """Return whether a number is, in fewer operations than torch's own takes."""
    return number * 0 == 0


def joint_terms(
    losses: Tensor,
    layout: ClassLayout,
    parameters: Sequence[nn.Parameter],
    seed: Tensor | float,
    memory: Memory,
    keep_graph: bool = False,
) -> dict[nn.Parameter, Term]:
    """Return the class gradients of the parameters, all kept; refuse if that exceeds the memory limit."""
    return kept_terms(class_passes(losses, layout, parameters, seed, keep_graph), layout, parameters, memory)


def kept_terms(
    passes: Iterable[Sequence[Tensor | None]], layout: ClassLayout, parameters: Sequence[nn.Parameter], memory: Memory
) -> dict[nn.Parameter, Term]:
    """Return what passes, class after class, find of the parameters; None where a parameter is out of reach."""
    needed = len(layout) * sum(p.numel() * p.element_size() for p in parameters)
    if not memory.take(needed):
        raise InputError(
            f"{len(layout)} class gradients take {needed / 2**20:.1f} MiB, more than the {memory.left / 2**20:.1f} MiB "
            "left of `max_memory`; raise it, or use a rule that needs norms only."
        )
    kept = [p.new_zeros(len(layout), *p.shape) for p in parameters]
    reached = [False] * len(parameters)
    for position, gradients in enumerate(passes):
        for i, gradient in enumerate(gradients):
            if gradient is not None:
                kept[i][position] = gradient
                reached[i] = True
    return {p: Dense(k, memory) for p, k, r in zip(parameters, kept, reached, strict=True) if r}

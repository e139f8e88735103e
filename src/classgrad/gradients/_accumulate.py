"""Raw class sums over micro-batches that come in any order."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor, distributed, nn
from torch.distributed import ProcessGroup

from classgrad._errors import InputError
from classgrad.gradients._combine import Reference, Terms
from classgrad.gradients._layout import ClassLayout
from classgrad.gradients.terms._terms import Dense, Memory, Term, promote


class Accumulator:
    """The sum of the example gradients of every class seen so far, one buffer per class."""

    def __init__(self, limit: int) -> None:
        self._memory = Memory(limit)
        self._limit = limit
        self._sums: dict[int, dict[nn.Parameter, Tensor]] = {}
        self._losses: dict[int, Tensor] = {}
        self._counts: dict[int, int] = {}

    def add(self, terms: Terms, losses: Tensor, layout: ClassLayout, seed: Tensor | float) -> None:
        """Add a micro-batch: its terms hold ``seed`` times the sums of a class, ``losses`` are its f^(l)."""
        for position, label in enumerate(layout.classes.tolist()):
            self._counts[label] = self._counts.get(label, 0) + layout.sizes[position]
            total = losses[position] * layout.examples
            self._losses[label] = self._losses[label] + total if label in self._losses else total
            if not layout.sizes[position]:
                continue
            sums = self._sums.setdefault(label, {})
            for p, term in terms.items():
                gradient = promote(term.dense(position, position + 1)[0]) / seed
                if p in sums:
                    sums[p] += gradient
                elif self._memory.take(gradient.numel() * gradient.element_size()):
                    sums[p] = gradient
                else:
                    raise InputError(
                        f"The class gradients of {len(self._sums)} classes exceed `max_memory` = {self._limit} bytes; "
                        "raise it, or send micro-batches class by class and give `total`."
                    )

    def reduce(self, group: ProcessGroup, labels: Sequence[int], parameters: Sequence[nn.Parameter]) -> None:
        """Add up over the processes of a group, which must agree on the labels and the parameters.

        Normalization is not linear, so it is the class sums that have to be added: one message per class.
        """
        device = parameters[0].device
        zero = torch.zeros((), device=device)
        counts = torch.tensor([self._counts.get(label, 0) for label in labels], device=device)
        losses = torch.stack([self._losses.get(label, zero).to(device, torch.float64) for label in labels])
        reached = torch.tensor([any(p in s for s in self._sums.values()) for p in parameters], device=device)
        reached = reached.to(torch.int32)
        for tensor in (counts, losses, reached):
            distributed.all_reduce(tensor, group=group)
        common = [p for p, count in zip(parameters, reached.tolist(), strict=True) if count]
        kinds = [promote(p.detach()).dtype for p in common]
        dtype = functools.reduce(torch.promote_types, kinds, torch.float32)
        for label, count in zip(labels, counts.tolist(), strict=True):
            own = self._sums.get(label, {})
            parts = [own.get(p, torch.zeros_like(p, dtype=dtype)).reshape(-1).to(dtype) for p in common]
            flat = torch.cat(parts or [zero[None]])
            if count:
                distributed.all_reduce(flat, group=group)
                sums = torch.split(flat, [p.numel() for p in common]) if common else ()
                each = zip(common, kinds, sums, strict=True)
                self._sums[label] = {
                    p: (part if kind.is_complex else part.real).view(p.shape).to(kind) for p, kind, part in each
                }
        self._counts = dict(zip(labels, counts.tolist(), strict=True))
        self._losses = dict(zip(labels, losses.to(dtype.to_real()), strict=True))

    def finish(self) -> tuple[dict[nn.Parameter, Term], Tensor, ClassLayout]:
        """Return the sums as terms, f^(l) over everything seen, and the layout of all classes."""
        labels = sorted(self._counts)
        counts = torch.tensor([self._counts[label] for label in labels], dtype=torch.int64)
        losses = torch.stack([self._losses[label] for label in labels]) / max(1, int(counts.sum()))
        index = torch.repeat_interleave(torch.arange(len(labels)), counts)
        layout = ClassLayout(torch.tensor(labels, dtype=torch.int64, device=losses.device), index.to(losses.device))
        reached = dict.fromkeys(p for sums in self._sums.values() for p in sums)
        terms: dict[nn.Parameter, Term] = {}
        for p in reached:
            rows = [self._sums.get(label, {}).pop(p, None) for label in labels]
            like = next(row for row in rows if row is not None)
            terms[p] = Dense(torch.stack([torch.zeros_like(like) if r is None else r for r in rows]), self._memory)
        return terms, losses, layout

    def units(self) -> Reference:
        """Return each class's sum as a unit vector over all parameters, or as nothing where it has no direction."""
        out = {}
        for label, sums in self._sums.items():
            norm = torch.stack([s.square().sum() for s in sums.values()]).sum().sqrt() if sums else torch.zeros(())
            usable = bool(norm > 0) and bool(norm.isfinite())
            out[label] = {p: s / norm for p, s in sums.items()} if usable else {}
        return out

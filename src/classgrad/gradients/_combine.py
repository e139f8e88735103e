"""From the class gradients of all parameters to the rule's weights and the update direction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from classgrad._errors import InputError
from classgrad.gradients._layout import ClassLayout
from classgrad.gradients._step import Step
from classgrad.gradients.terms._pack import Member, Pack, pack, parts
from classgrad.gradients.terms._terms import Term, promote
from classgrad.rules import ClassStatistics, Rule

Terms = Mapping[nn.Parameter, Term]
Scopes = Mapping[nn.Parameter, int]
Reference = Mapping[int, Mapping[nn.Parameter, Tensor]]
"""The full-batch class gradients by label, each of unit length over all parameters."""
Found = list[tuple[list[Member], Tensor]]
"""The update direction, in as few tensors as it came in, each with the parameters it is of."""


@dataclass(frozen=True)
class Wishes:
    """What a step should work out besides what the rule needs, and when it should refuse."""

    norms: bool
    gram: bool
    on_missing: str
    on_nonfinite: str


def scope_of(parameters: Sequence[nn.Parameter], model: nn.Module, rule: Rule) -> Scopes:
    """Return, for each parameter, the number of the group whose statistics weigh it."""
    if rule.per == "model":
        return dict.fromkeys(parameters, 0)
    if rule.per == "parameter":
        return {p: number for number, p in enumerate(parameters)}
    owner = {p: m for m, module in enumerate(model.modules()) for p in module._parameters.values()}
    numbers = {layer: i for i, layer in enumerate(dict.fromkeys(owner[p] for p in parameters))}
    return {p: numbers[owner[p]] for p in parameters}


def class_losses(losses: Tensor, layout: ClassLayout) -> Tensor:
    """Return f^(l) = 1/n Σ over the class's examples."""
    return layout.sum(promote(losses.detach())) / max(1, layout.examples)


def combine(
    terms: Terms,
    scopes: Scopes,
    rule: Rule,
    losses: Tensor,
    layout: ClassLayout,
    wishes: Wishes,
    *,
    factor: Tensor | float = 1.0,
    target: Tensor | float = 1.0,
    reference: Reference | None = None,
) -> tuple[Step, Found]:
    """Weigh the classes by the rule.

    ``losses`` are f^(l); ``terms`` hold ``factor`` times the class gradients; the direction comes back times
    ``target``. A rule for the model as a whole needs no ``scopes``.
    """
    whole = rule.per == "model"
    packs = pack(terms) if whole else [Pack(term, [(p, 0)]) for p, term in terms.items()]
    owners = [0] * len(packs) if whole else [scopes[each.members[0][0]] for each in packs]
    kind = "gram" if wishes.gram or "gram" in rule.needs else "norms"
    count = 1 if whole else max(scopes.values(), default=0) + 1
    sums = _sums_by_scope([each.term for each in packs], owners, count, losses, kind)
    if not _is_one(factor):
        sums = sums / (factor * factor)
    known = "projections" not in rule.needs
    step = judge(sums, rule, losses, layout, None if known else partial(_projections, terms, reference, layout, factor))
    refuse(step, wishes)
    scaled = step.weights if target is factor else step.weights * (target / factor)
    by_scope = (scaled,) if whole else scaled.unbind()
    known_finite = not step.finite.is_cuda and bool(step.finite.all())  # a GPU is not waited for to find out
    del terms  # what the class gradients are held in is let go as the direction comes
    return step, weigh_packs(packs, [by_scope[owner] for owner in owners], known_finite)


def judge(
    sums: Tensor,
    rule: Rule,
    losses: Tensor,
    layout: ClassLayout,
    projections_at: Callable[[Tensor], Tensor] | None = None,
) -> Step:
    """Return what the rule says to the squared norms (S, L) or Gram matrices (S, L, L) of the scopes.

    ``projections_at`` are the projections of class gradients of given norms, if it asks for them.
    """
    whole = rule.per == "model"
    gram = sums if sums.dim() == 3 else None
    squares = sums if gram is None else sums.diagonal(dim1=1, dim2=2)
    norms = squares.clamp_min(0).sqrt()
    lengths = norms.unbind()
    total = lengths[0] if len(lengths) == 1 else squares.sum(0).clamp_min(0).sqrt()
    finite = losses * 0 == total * 0  # both are, else one of them is NaN times 0
    usable = finite if layout.make_up.complete else (layout.counts > 0) & finite
    projections = None if projections_at is None else projections_at(total)
    each_scope = [
        _weights(rule, layout, usable & (length > 0), length, None if gram is None else gram[s], projections)
        for s, length in enumerate(lengths)
    ]
    return Step(
        classes=layout.classes.clone(),  # the layout is kept for the next batch that is alike
        counts=layout.counts.clone(),
        losses=losses,
        weights=each_scope[0] if whole else torch.stack(each_scope),
        finite=finite,
        norms=total,
        gram=None if gram is None else gram.sum(0),
        projections=projections,
    )


def weigh_packs(packs: list[Pack], weights: Sequence[Tensor], finite: bool) -> Found:
    """Return the direction; ``packs`` are let go of as it comes."""
    found: Found = []
    for own in weights:
        each = packs.pop(0)
        found.append((each.members, each.term.weighted(own, finite)))
        del each
    return found


def handed_out(found: Found) -> dict[nn.Parameter, Tensor]:
    """Return the direction of every parameter."""
    return {p: part for members, direction in found for p, part in parts(members, direction)}


def weigh_blindly(rule: Rule, losses: Tensor, layout: ClassLayout, finite: Tensor, norms: Tensor | None = None) -> Step:
    """Return the step of a rule that needs to know nothing of the class gradients, or only remembered ``norms``."""
    active = finite if layout.make_up.complete else (layout.counts > 0) & finite
    # the extents of losses below 0 say nothing of a norm
    weights = _weights(rule, layout, active if norms is None else active & (norms > 0), norms)
    weights = weights.to(losses.dtype) if norms is None else weights  # in low precision 1/‖g_l‖ may overflow
    return Step(layout.classes.clone(), layout.counts.clone(), losses, weights, finite)


def refuse(step: Step, wishes: Wishes) -> None:
    """Raise for skipped classes where the caller asked for it."""
    if "error" not in (wishes.on_missing, wishes.on_nonfinite):
        return
    for label, reason in step.skipped.items():
        if reason == "missing" and wishes.on_missing == "error":
            raise InputError(
                f"Class {label} has no example in the batch and on_missing='error'; use a sampler that puts every "
                "class into every batch, such as classgrad.sampling.ProportionalBatches."
            )
        if reason == "nonfinite" and wishes.on_nonfinite == "error":
            raise InputError(
                f"The loss or gradient of class {label} is inf or NaN and on_nonfinite='error'; nothing was written."
            )


def _is_one(factor: Tensor | float) -> bool:
    return not isinstance(factor, Tensor) and factor == 1


def _sums_by_scope(terms: Sequence[Term], owners: Sequence[int], count: int, losses: Tensor, kind: str) -> Tensor:
    """Return Σ over each scope's terms of the squared norms (S, L) or the Gram matrices (S, L, L)."""
    values = [term.gram() if kind == "gram" else term.square_norms() for term in terms]
    if not values:
        return losses.new_zeros(count, *losses.shape * (2 if kind == "gram" else 1))
    if len(values) == count == 1:
        return values[0][None]
    stacked = torch.stack(values)
    if count == 1:
        return stacked.sum(0, keepdim=True)
    index = torch.tensor(owners, device=stacked.device)
    return stacked.new_zeros(count, *stacked.shape[1:]).index_add_(0, index, stacked)


def _projections(
    terms: Terms, reference: Reference | None, layout: ClassLayout, factor: Tensor | float, norms: Tensor
) -> Tensor:
    """Return p_l, the cosine between each class gradient and its reference (Eq. 8)."""
    if reference is None:
        raise InputError(
            "The rule needs full-batch class gradients and there are none yet; call `refresh(loss_fn, batches)` first."
        )
    labels = layout.labels
    missing = [label for label, size in zip(labels, layout.sizes, strict=True) if size and label not in reference]
    if missing:
        raise InputError(
            f"The full-batch class gradients should cover all classes of the batch. Class {missing[0]} is not among "
            "them; `refresh` over data that holds every class."
        )
    units = [reference.get(label) for label in labels]
    dots = [term.dot([None if unit is None else unit.get(p) for unit in units]) for p, term in terms.items()]
    dot = torch.stack(dots).sum(0) / factor if dots else torch.zeros_like(norms)
    return dot / norms.where(norms > 0, norms.new_ones(()))


def _weights(
    rule: Rule,
    layout: ClassLayout,
    active: Tensor,
    norms: Tensor | None = None,
    gram: Tensor | None = None,
    projections: Tensor | None = None,
) -> Tensor:
    weights = rule(ClassStatistics(layout.classes, active, norms, gram, projections))
    return weights.nan_to_num(0.0, 0.0, 0.0) * active

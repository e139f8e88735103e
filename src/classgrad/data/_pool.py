"""From a pool of labelled images to a dataset: which of them are taken, and for what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from classgrad._errors import InputError
from classgrad.data._dataset import Dataset, Split
from classgrad.data._normalization import moments
from classgrad.data._preprocessing import Preprocessing

Normalization = tuple[tuple[float, ...], tuple[float, ...]]


@dataclass(frozen=True, eq=False)
class Pool:
    """All images of a source, and for each of its classes where those for training and those held out are."""

    classes: tuple[str, ...]
    images: Tensor
    train: tuple[Tensor, ...]
    held_out: tuple[Tensor, ...]
    source: str


@dataclass(frozen=True)
class Group:
    """One class of a dataset: the pool's classes that form it, and how many images *of each of them* a split takes.

    Training takes the first of a class's training images; validation the first and test the last of those held out.
    """

    name: str
    members: tuple[int, ...]
    train: int
    validation: int
    test: int


def singles(
    names: Sequence[str], train: Sequence[int], *, validation: int, test: int, members: Sequence[int] | None = None
) -> tuple[Group, ...]:
    """Return groups of one pool class each; by default the first ``len(train)`` of the pool."""
    chosen = range(len(train)) if members is None else members
    return tuple(Group(names[m], (m,), n, validation, test) for m, n in zip(chosen, train, strict=True))


def assemble(
    pool: Pool,
    groups: Sequence[Group],
    *,
    name: str,
    protocol: str | None = None,
    normalization: Normalization | None = None,
) -> Dataset:
    """Take the images ``groups`` asks for; normalize by the training split unless told otherwise."""
    for group in groups:
        _check_supply(pool, group)
    train, validation, test = (
        _split(pool, [torch.cat([taken(pool, member, group) for member in group.members]) for group in groups])
        for taken in (_training, _validation, _test)
    )
    mean, std = normalization or moments(train.x)
    shape = tuple(pool.images.shape[1:])
    preprocessing = Preprocessing(tuple(group.name for group in groups), shape, mean, std)
    return Dataset(name, protocol, train, validation, test, preprocessing, pool.source)


def _training(pool: Pool, member: int, group: Group) -> Tensor:
    return pool.train[member][: group.train]


def _validation(pool: Pool, member: int, group: Group) -> Tensor:
    return pool.held_out[member][: group.validation]


def _test(pool: Pool, member: int, group: Group) -> Tensor:
    held_out = pool.held_out[member]
    return held_out[len(held_out) - group.test :]


def _split(pool: Pool, indices_by_label: list[Tensor]) -> Split:
    labels = torch.cat([torch.full_like(indices, label) for label, indices in enumerate(indices_by_label)])
    indices, order = torch.cat(indices_by_label).sort()
    return Split(pool.images[indices], labels[order], indices)


def _check_supply(pool: Pool, group: Group) -> None:
    for member in group.members:
        supplies = (
            ("training", group.train, len(pool.train[member])),
            ("held-out", group.validation + group.test, len(pool.held_out[member])),
        )
        for kind, wanted, there in supplies:
            if wanted > there:
                raise InputError(
                    f"class {pool.classes[member]!r} has {there} {kind} images, {wanted} were asked for: ask for fewer"
                )

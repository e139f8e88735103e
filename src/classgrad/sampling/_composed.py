"""The samplers whose every batch has the same number of each class."""

from collections.abc import Sequence
from math import ceil

import torch

from classgrad._errors import InputError
from classgrad.sampling._base import ClassBatches, positive_int
from classgrad.sampling._groups import Classes, Groups, Labels
from classgrad.sampling._plans import Composed
from classgrad.sampling._shares import shares


class _FixedCounts(ClassBatches):
    _plan: Composed

    @property
    def counts(self) -> tuple[int, ...]:
        """How many examples of each of :attr:`classes` every batch holds."""
        return self._plan.counts


class PowerBatches(_FixedCounts):
    """Every batch holds each class in proportion to (its number of examples)**alpha, and at least once.

    alpha 1 is :class:`ProportionalBatches`, 0 is balanced up to rounding, 0.5 the square-root sampling of the
    long-tail literature. The counts, the same in every batch, follow by the largest remainder with a minimum of one
    (:attr:`counts` tells them). Each class runs through its examples in a random order that is renewed when all were
    used and carried on over the ends of epochs, so no example comes twice before all of its class came once; only a
    batch in which a class starts again can hold an example of it twice. An epoch is one pass of the largest class:
    the smallest number of batches that hold as many of its examples as there are.

    :param labels: the class of every example: integers or strings, e.g. ``labels_of(dataset)``.
    :param batch_size: examples in a batch, over all replicas; at least the number of classes.
    :param alpha: from 0 to 1.
    :param classes: all classes there are, if not those of the labels. One without examples is warned about and left
        out of the batches (its count is 0).
    :param generator: gives the random key, one draw at construction; by default one seeded with 0.
    :param num_replicas: over how many processes each batch is divided, disjointly and as evenly as possible. All
        must start from generators in the same state.
    :param rank: which of them this one is.

    >>> sampler = PowerBatches([0] * 900 + [1] * 100, batch_size=40, alpha=0.5)
    >>> sampler.counts, len(sampler)
    ((30, 10), 30)
    """

    def __init__(
        self,
        labels: Labels,
        batch_size: int,
        alpha: float,
        *,
        classes: Classes | None = None,
        generator: torch.Generator | None = None,
        num_replicas: int = 1,
        rank: int = 0,
    ) -> None:
        if not 0 <= alpha <= 1:
            raise InputError(f"alpha must be from 0 (balanced) to 1 (proportional); found {alpha}")
        self.alpha = float(alpha)
        super().__init__(
            labels,
            lambda groups: _powers(groups, batch_size, alpha),
            classes=classes,
            generator=generator,
            num_replicas=num_replicas,
            rank=rank,
        )


class ProportionalBatches(_FixedCounts):
    """Every batch holds each class in its share of the data, and at least once (the batches of Algs. 2 and 5).

    The per-class batch sizes follow the imbalance, so all classes have the same number of batches. Where the shares
    are not whole numbers, the largest remainder with a minimum of one decides, and what a class has left at the end
    of an epoch opens the next; see :class:`PowerBatches`, of which this is alpha 1, for this and the parameters.

    >>> sampler = ProportionalBatches([0] * 5000 + [1] * 714, batch_size=400)
    >>> sampler.counts, len(sampler)
    ((350, 50), 15)
    """

    def __init__(
        self,
        labels: Labels,
        batch_size: int,
        *,
        classes: Classes | None = None,
        generator: torch.Generator | None = None,
        num_replicas: int = 1,
        rank: int = 0,
    ) -> None:
        super().__init__(
            labels,
            lambda groups: _powers(groups, batch_size, alpha=1.0),
            classes=classes,
            generator=generator,
            num_replicas=num_replicas,
            rank=rank,
        )


class BalancedBatches(_FixedCounts):
    """Every batch holds exactly `per_class` examples of every class (the batches of Algs. 3 and 4).

    An epoch is one pass of the largest class; a class that runs out is reshuffled and starts again. The classes'
    orders carry on over the ends of epochs as in :class:`PowerBatches`, which describes the other parameters.

    :param per_class: examples of each class in a batch.
    :param batch_size: in place of `per_class`: the largest equal number of each class that fits into it is taken, so
        that the attribute :attr:`batch_size` is a multiple of the number of classes.

    >>> sampler = BalancedBatches(["cat"] * 90 + ["dog"] * 9, per_class=4)
    >>> sampler.counts, sampler.batch_size, len(sampler)
    ((4, 4), 8, 23)
    """

    def __init__(
        self,
        labels: Labels,
        *,
        per_class: int | None = None,
        batch_size: int | None = None,
        classes: Classes | None = None,
        generator: torch.Generator | None = None,
        num_replicas: int = 1,
        rank: int = 0,
    ) -> None:
        super().__init__(
            labels,
            lambda groups: _oversampled(groups, _equal_counts(groups, per_class, batch_size)),
            classes=classes,
            generator=generator,
            num_replicas=num_replicas,
            rank=rank,
        )
        self.per_class = max(self.counts)


class UndersampledBatches(_FixedCounts):
    """Every batch holds exactly `per_class` examples of every class; an epoch ends with the smallest class.

    An epoch is as many whole batches as the smallest class fills. The larger classes carry on where they were, so
    every epoch shows other examples of them until all came. Parameters as for :class:`BalancedBatches`, but
    `per_class` cannot exceed the smallest class.

    >>> sampler = UndersampledBatches([0] * 90 + [1] * 9, per_class=4)
    >>> sampler.counts, len(sampler)
    ((4, 4), 2)
    """

    def __init__(
        self,
        labels: Labels,
        *,
        per_class: int | None = None,
        batch_size: int | None = None,
        classes: Classes | None = None,
        generator: torch.Generator | None = None,
        num_replicas: int = 1,
        rank: int = 0,
    ) -> None:
        super().__init__(
            labels,
            lambda groups: _undersampled(groups, _equal_counts(groups, per_class, batch_size)),
            classes=classes,
            generator=generator,
            num_replicas=num_replicas,
            rank=rank,
        )
        self.per_class = max(self.counts)


def _powers(groups: Groups, batch_size: int, alpha: float) -> Composed:
    size = _fitting(groups, batch_size)
    if size > len(groups):
        raise InputError(
            f"batch_size={size} is more than the {len(groups)} examples; the largest that works is {len(groups)}"
        )
    return _oversampled(groups, shares(groups.sizes, size, alpha))


def _oversampled(groups: Groups, counts: Sequence[int]) -> Composed:
    largest = max(groups.sizes)
    slowest = min(count for size, count in zip(groups.sizes, counts, strict=True) if size == largest)
    return Composed(groups, counts, length=ceil(largest / slowest))


def _undersampled(groups: Groups, counts: Sequence[int]) -> Composed:
    smallest, each = min(size for size in groups.sizes if size), max(counts)
    if each > smallest:
        raise InputError(
            f"per_class={each} is more than the {smallest} examples of the smallest class;"
            f" use at most {smallest}, or BalancedBatches, which repeats them"
        )
    return Composed(groups, counts, length=smallest // each)


def _equal_counts(groups: Groups, per_class: int | None, batch_size: int | None) -> tuple[int, ...]:
    if per_class is not None and batch_size is None:
        each = positive_int("per_class", per_class)
    elif batch_size is not None and per_class is None:
        each = _fitting(groups, batch_size) // groups.present
    else:
        raise InputError(f"give either per_class or batch_size; found {per_class=}, {batch_size=}")
    return tuple(each if size else 0 for size in groups.sizes)


def _fitting(groups: Groups, batch_size: int) -> int:
    size, least = positive_int("batch_size", batch_size), groups.present
    if size < least:
        raise InputError(
            f"batch_size={size} cannot hold each of the {least} classes; the smallest that works is {least}"
        )
    return size

"""Plain shuffled batches, with the guarantees of the other samplers."""

import torch

from classgrad._errors import InputError
from classgrad.sampling._base import ClassBatches, positive_int
from classgrad.sampling._groups import Classes, Groups, Labels
from classgrad.sampling._plans import Shuffled


class ShuffledBatches(ClassBatches):
    """Mixed batches cut from a new random order of all examples in every epoch (the batches of plain SGD, Sec. 5).

    Which classes a batch holds is left to chance; within a batch the examples are grouped by class. The last batch of
    an epoch may be smaller and is kept, unless `drop_last` is true. The other parameters are those of
    :class:`PowerBatches`; a batch_size above the number of examples gives one batch of all of them.

    >>> sampler = ShuffledBatches([0] * 90 + [1] * 10, batch_size=30)
    >>> [len(batch) for batch in sampler]
    [30, 30, 30, 10]
    """

    def __init__(
        self,
        labels: Labels,
        batch_size: int,
        *,
        drop_last: bool = False,
        classes: Classes | None = None,
        generator: torch.Generator | None = None,
        num_replicas: int = 1,
        rank: int = 0,
    ) -> None:
        super().__init__(
            labels,
            lambda groups: _shuffled(groups, positive_int("batch_size", batch_size), drop_last),
            classes=classes,
            generator=generator,
            num_replicas=num_replicas,
            rank=rank,
            drop_last=drop_last,
        )


def _shuffled(groups: Groups, batch_size: int, drop_last: bool) -> Shuffled:
    if drop_last and batch_size > len(groups):
        raise InputError(
            f"batch_size={batch_size} is more than the {len(groups)} examples, so that drop_last leaves no batch;"
            f" use at most {len(groups)}, or drop_last=False"
        )
    return Shuffled(groups, batch_size, drop_last)

"""Class-aware batch samplers: which examples make up each batch, as indices only, never images.

All are torch ``BatchSampler``s, to be used as ``DataLoader(dataset, batch_sampler=ProportionalBatches(...))``; a loop
whose data lies on the device takes index tensors from ``sampler.tensors(device)`` instead. They hold exactly what they
promise: the composition of every batch, ``len()``, no repetition within a class before all its examples came,
their own random generator, ``state_dict()`` in the middle of an epoch, ``set_epoch``, and replicas whose shards
together are the single-process batch. Batches come grouped by class, in ascending order of the classes.

With Lightning, pass ``num_replicas`` and ``rank`` yourself and set ``Trainer(use_distributed_sampler=False)``.
"""

from classgrad.sampling._base import ClassBatches
from classgrad.sampling._composed import BalancedBatches, PowerBatches, ProportionalBatches, UndersampledBatches
from classgrad.sampling._labels import labels_of
from classgrad.sampling._shuffled import ShuffledBatches

__all__ = [
    "BalancedBatches",
    "ClassBatches",
    "PowerBatches",
    "ProportionalBatches",
    "ShuffledBatches",
    "UndersampledBatches",
    "labels_of",
]

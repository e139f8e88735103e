"""What all samplers share: iteration, the place in the epoch, its saving and loading, and replicas."""

import operator
import zlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.utils.data import BatchSampler

from classgrad._errors import InputError
from classgrad.sampling._groups import Classes, Groups, Labels, group_by_class
from classgrad.sampling._plans import Plan

_STATE = ("epoch", "batch", "key", "fingerprint")


class ClassBatches(BatchSampler):
    """Base of the samplers of this room; use one of its subclasses.

    A batch is a list of example indices **grouped by class, in ascending order of the classes**. The batches are a
    function of a key, drawn once from `generator`, and of their number, so an epoch can be reached without running
    through those before it.

    Every iteration yields `len(sampler)` batches and is one epoch; the next iteration is the next epoch, also when
    the last one was left early. `set_epoch` chooses another, `load_state_dict` continues in the middle of one.

    :attr:`classes` are the classes in ascending order, :attr:`sizes` their numbers of examples.
    """

    def __init__(
        self,
        labels: Labels,
        plan: Callable[[Groups], Plan],
        *,
        classes: Classes | None,
        generator: torch.Generator | None,
        num_replicas: int,
        rank: int,
        drop_last: bool = True,
    ) -> None:
        groups = group_by_class(labels, classes)
        self.labels = labels
        self.classes = groups.classes
        self.sizes = groups.sizes
        self._members = groups.members
        self._plan = plan(groups)
        self.batch_size = self._plan.batch_size
        self.drop_last = drop_last
        self.generator = _generator(generator)
        self.num_replicas = positive_int("num_replicas", num_replicas)
        self.rank = _integer("rank", rank)
        self._check_replicas()
        self._key = int(torch.randint(2**63 - 1, (), generator=self.generator, device=self.generator.device))
        self._fingerprint: int | None = None
        self._epoch = 0
        self._done = 0
        self._begun = False  # whether the next iteration opens the epoch after this one

    @property
    def sampler(self) -> "ClassBatches":  # type: ignore[override]
        """The sampler itself, since Lightning calls `set_epoch` on a batch sampler's `sampler`."""
        return self

    @property
    def epoch(self) -> int:
        """The epoch of the latest batch, or the one that comes next if none was taken from it yet."""
        return self._epoch

    def __len__(self) -> int:
        return self._plan.length

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self.tensors():
            yield batch.tolist()

    def tensors(self, device: torch.device | str | None = None) -> Iterator[Tensor]:
        """Iterate like `iter(sampler)`, with the same state, but yield int64 tensors, if wanted on `device`.

        Many batches are moved at once, so a loop over data that lies on the device waits for nothing.
        """
        if self._begun:
            self._epoch, self._done = self._epoch + 1, 0
        self._begun = True
        key, epoch, done = self._key, self._epoch, self._done
        while done < len(self):
            chunk = self._plan.chunk(key, epoch, done)[: len(self) - done, self.rank :: self.num_replicas]
            # a copy: what a caller writes into a batch must not come back when the plan's chunk is read again
            for batch in _moved(chunk, device):
                done += 1
                self._epoch, self._done = epoch, done
                yield batch

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration epoch number `epoch`; a place loaded within that same epoch is kept."""
        epoch = _integer("epoch", epoch)
        if epoch < 0:
            raise InputError(f"epoch must not be negative; found {epoch}")
        if self._begun or epoch != self._epoch:
            self._epoch, self._done, self._begun = epoch, 0, False

    def state_dict(self, done: int | None = None) -> dict[str, int]:
        """Where the sampler is: a sampler that loads it goes on with the batches that would have come.

        `done` is the number of batches of this epoch that were used. Without it, all that were yielded count; a
        DataLoader with worker processes takes batches in advance, so there the loop should say how far it is.
        The state does not depend on `num_replicas` and `rank`.
        """
        batch = self._done if done is None else _integer("done", done)
        if not 0 <= batch <= len(self):
            raise InputError(f"done must be from 0 to the {len(self)} batches of an epoch; found {batch}")
        ahead, batch = divmod(batch, len(self))
        return {
            "epoch": self._epoch + ahead,
            "batch": batch,
            "key": self._key,
            "fingerprint": self._identity(),
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue where the sampler was that gave `state`; it must be of the same kind and labels."""
        missing = [name for name in _STATE if name not in state]
        if missing:
            raise InputError(f"state must be what state_dict() gave; it lacks {', '.join(missing)}")
        if state["fingerprint"] != self._identity():
            raise InputError(
                f"state must come from a {type(self).__name__} with the same labels and batch size;"
                " this one is of another sampler: build the sampler as it was when the state was saved"
            )
        if state["epoch"] < 0 or not 0 <= state["batch"] < len(self):
            raise InputError(f"state must lie in an epoch; found epoch {state['epoch']}, batch {state['batch']}")
        self._key, self._epoch, self._done = state["key"], state["epoch"], state["batch"]
        self._begun = False

    def _check_replicas(self) -> None:
        if not 0 <= self.rank < self.num_replicas:
            raise InputError(f"rank must be from 0 to num_replicas - 1 = {self.num_replicas - 1}; found {self.rank}")
        if self._plan.smallest < self.num_replicas:
            raise InputError(
                f"every batch must hold an example for each of num_replicas={self.num_replicas}; the smallest holds"
                f" {self._plan.smallest}: use a larger batch_size{'' if self.drop_last else ' or drop_last=True'}"
            )

    def _identity(self) -> int:
        if self._fingerprint is None:
            recipe = repr((type(self).__name__, self.sizes, self._plan.recipe)).encode()
            self._fingerprint = zlib.crc32(self._members.numpy().data, zlib.crc32(recipe))
        return self._fingerprint


def _moved(chunk: Tensor, device: torch.device | str | None) -> Tensor:
    if device is not None and torch.device(device).type == "cuda":
        return chunk.contiguous().pin_memory().to(device, non_blocking=True)  # nothing waits for what the device does
    return chunk.to(device, copy=True, memory_format=torch.contiguous_format)


def _generator(given: torch.Generator | None) -> torch.Generator:
    if given is None:
        return torch.Generator().manual_seed(0)
    if not isinstance(given, torch.Generator):
        raise InputError(
            f"generator must be a torch.Generator, such as torch.Generator().manual_seed(1); found {given!r}"
        )
    return given


def positive_int(parameter: str, value: int) -> int:
    """`value` as an int, if it is one and at least 1."""
    number = _integer(parameter, value, "a positive integer")
    if number < 1:
        raise InputError(f"{parameter} must be a positive integer; found {value!r}")
    return number


def _integer(parameter: str, value: int, wanted: str = "an integer") -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise InputError(f"{parameter} must be {wanted}; found {value!r}") from None

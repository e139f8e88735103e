"""Where every random number of a run comes from: one stream for each use, all derived from the seed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


def stream(seed: int, use: str) -> int:
    """Give the seed of one use ("model", "batches", "dropout", "augmentation", "iterate") of a run.

    Streams do not depend on one another: with the same seed, all algorithms start from the same weights.
    """
    digest = hashlib.sha256(f"classgrad/{seed}/{use}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1  # torch takes 63 bits


@contextmanager
def forked(device: torch.device) -> Iterator[None]:
    """Give torch's global generators back as they were: dropout and initialization know no other."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        yield


def global_state(device: torch.device) -> dict[str, Tensor]:
    """Give the state of the global generators that layers such as dropout draw from."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore_global_state(state: dict[str, Tensor], device: torch.device) -> None:
    """Set the global generators to what :func:`global_state` gave."""
    torch.set_rng_state(state["cpu"].cpu())
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"].cpu(), device)

"""Set-up time and batches per second of the samplers, beside torch's RandomSampler + BatchSampler.

Run: python benchmarks/sampler_rate.py [--examples 10000000] [--classes 1000] [--batch-size 1000] [--batches 2000]

The contenders run one after the other in one process; the rate counts what an epoch needs before its first batch.
"""

import argparse
import time
from collections.abc import Callable, Iterable
from itertools import chain, islice, repeat
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import BatchSampler, RandomSampler

from classgrad.sampling import (
    BalancedBatches,
    PowerBatches,
    ProportionalBatches,
    ShuffledBatches,
    UndersampledBatches,
)

_DRAWN = 2**20


def long_tailed_labels(examples: int, classes: int) -> NDArray[np.int64]:
    """Labels in random order, each class exponentially rarer than the one before, 100 to 1 over all."""
    shares = 100.0 ** -np.linspace(0, 1, classes)
    rng = np.random.default_rng(0)
    labels = np.empty(examples, dtype=np.int64)
    for start in range(0, examples, _DRAWN):  # all at once would take several times the memory of the labels
        part = labels[start : start + _DRAWN]
        part[:] = rng.choice(classes, size=len(part), p=shares / shares.sum())
    return labels


def contenders(labels: NDArray[np.int64], batch_size: int) -> dict[str, Callable[[], Iterable[object]]]:
    each = batch_size // len(np.unique(labels))
    return {
        "torch RandomSampler + BatchSampler": lambda: BatchSampler(RandomSampler(labels), batch_size, False),
        "ShuffledBatches": lambda: ShuffledBatches(labels, batch_size),
        "ProportionalBatches": lambda: ProportionalBatches(labels, batch_size),
        "PowerBatches(alpha=0.5)": lambda: PowerBatches(labels, batch_size, 0.5),
        "BalancedBatches": lambda: BalancedBatches(labels, per_class=each),
        "UndersampledBatches": lambda: UndersampledBatches(labels, per_class=each),
    }


def setup(make: Callable[[], Iterable[object]], repeats: int = 3) -> dict[str, float]:
    """Seconds and bytes of a sampler's set-up and of its first batch after it (bytes on Linux alone).

    Seconds are the fewest of the repeats, since other work on the machine can only add to them. Peaks are those of the
    process while it sets up, and until the first batch has come; kept is what stays after both.
    """
    found = [_setup_once(make) for _ in range(repeats)]
    return {**found[0], **{name: min(times[name] for times in found) for name in ("setup_seconds", "first_seconds")}}


def _setup_once(make: Callable[[], Iterable[object]]) -> dict[str, float]:
    before = _resident(reset=True)
    start = time.perf_counter()
    sampler = make()
    ready = time.perf_counter()
    peak = _peak()
    iterator = iter(sampler)
    next(iterator)
    done = time.perf_counter()
    return {
        "setup_seconds": ready - start,
        "setup_bytes": peak - before,
        "first_seconds": done - ready,
        "first_bytes": _peak() - before,
        "kept_bytes": _resident() - before,
    }


def _resident(*, reset: bool = False) -> float:
    """Bytes of memory the process has now; ``reset`` makes :func:`_peak` start from here."""
    if not Path("/proc/self/clear_refs").exists():
        return float("nan")
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _peak() -> float:
    return _status("VmHWM") if Path("/proc/self/status").exists() else float("nan")


def _status(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024.0 * int(next(line for line in lines if line.startswith(f"{name}:")).split()[1])


def measure(make: Callable[[], Iterable[object]], batches: int) -> tuple[float, float]:
    """Seconds to set up, and batches per second over as many epochs as it takes."""
    start = time.perf_counter()
    sampler = make()
    ready = time.perf_counter()
    for _ in islice(chain.from_iterable(repeat(sampler)), batches):
        pass
    return ready - start, batches / (time.perf_counter() - ready)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=10_000_000)
    parser.add_argument("--classes", type=int, default=1_000)
    parser.add_argument("--batch-size", type=int, default=1_000)
    parser.add_argument("--batches", type=int, default=2_000)
    options = parser.parse_args()
    labels = long_tailed_labels(options.examples, options.classes)
    print(f"{options.examples:,} labels, {options.classes:,} classes, batches of {options.batch_size:,}")
    print(f"{'':36}{'set-up':>9}{'batches/s':>12}{'ratio':>8}")
    base = 0.0
    for name, make in contenders(labels, options.batch_size).items():
        setup, rate = measure(make, options.batches)
        base = base or rate
        print(f"{name:36}{setup:7.2f} s{rate:12,.0f}{rate / base:8.2f}")


if __name__ == "__main__":
    main()

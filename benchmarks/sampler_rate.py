"""Set-up time and batches per second of the samplers, beside torch's RandomSampler + BatchSampler.

Run: python benchmarks/sampler_rate.py [--examples 10000000] [--classes 1000] [--batch-size 1000] [--batches 2000]

The contenders run one after the other in one process; the rate counts what an epoch needs before its first batch.
"""

import argparse
import time
from collections.abc import Callable, Iterable
from itertools import chain, islice, repeat

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


def long_tailed_labels(examples: int, classes: int) -> NDArray[np.int64]:
    """Labels in random order, each class exponentially rarer than the one before, 100 to 1 over all."""
    shares = 100.0 ** -np.linspace(0, 1, classes)
    rng = np.random.default_rng(0)
    return np.sort(rng.choice(classes, size=examples, p=shares / shares.sum()))[rng.permutation(examples)]


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

"""How the learning rates of ``classgrad demo`` were picked: the same rates and seeds for every algorithm.

Each algorithm is trained at each rate with seeds that the demo does not use. The score of a rate is the peak of macro
recall on the validation split, averaged over the seeds; the smallest rate within two points of the best is taken.

    python benchmarks/demo_rates.py [--data digits-bi20] [--algorithms gd,pcngd]
"""

import argparse
from dataclasses import replace

import numpy as np

from classgrad.cli._demo import RATES, demo_spec
from classgrad.dynamics import Run, summarize
from classgrad.training import SEVEN, Job, train_all

GRID = (0.03, 0.1, 0.3, 1.0, 3.0)
SEEDS = (100, 101, 102)
TOLERANCE = 0.02


def score(runs: list[Run]) -> float:
    """Average over the seeds the highest macro recall on the validation split."""
    return float(np.mean([run.macro_recall("validation").max() for run in runs]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=",".join(RATES))
    parser.add_argument("--algorithms", default=",".join(SEVEN))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=None)
    given = parser.parse_args()
    for data in given.data.split(","):
        for name in given.algorithms.split(","):
            specs = [demo_spec(data, name, seed, lr) for lr in GRID for seed in SEEDS]
            jobs = [Job(replace(spec, gradients=False, device=given.device), None) for spec in specs]
            runs = train_all(jobs, workers=given.workers)
            groups = [runs[start : start + len(SEEDS)] for start in range(0, len(runs), len(SEEDS))]
            scores = [score(group) for group in groups]
            for lr, group, value in zip(GRID, groups, scores, strict=True):
                found = summarize(group)
                print(
                    f"{data:13s} {name:9s} lr {lr:<5g} validation {value:.4f} test {found.peak.mean:.4f} "
                    f"tau {found.tau.value:6.1f} MID {found.mid_fraction:.2f} {found.statuses}",
                    flush=True,
                )
            picked = next(lr for lr, value in zip(GRID, scores, strict=True) if value >= max(scores) - TOLERANCE)
            print(f"{data:13s} {name:9s} picked {picked:g}", flush=True)


if __name__ == "__main__":
    main()

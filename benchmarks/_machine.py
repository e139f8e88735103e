"""What the benchmarks ask of the machine."""

from __future__ import annotations

import sys

import torch


def need_gpu() -> None:
    """End with one line where there is no CUDA device."""
    if not torch.cuda.is_available():
        print("This benchmark needs a CUDA device.", file=sys.stderr)
        raise SystemExit(2)

"""What each kernel of classgrad.gradients.kernels costs on a GPU, shape by shape.

A line per case: microseconds of the kernel, of the torch operations it replaces and of the plain backward operation it
competes with (which gives no class gradients), what the kernel achieves in GB/s or TFLOP/s of the least that must be
moved or multiplied, and the largest error relative to the largest value in double precision. Times are those of
replayed CUDA graphs over several sets of inputs, so that they do not all come from the cache.

    PYTHONPATH=src python3 benchmarks/kernels.py [--only groupnorm,conv] [--layouts 2x64,1000x1] [--ieee] [--budget 55]
    PYTHONPATH=src python3 benchmarks/kernels.py --sweep --layouts 2x64
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator

import torch
from _arguments import layouts, names
from _kernel_case import Case, measure
from _kernel_norms import class_sums, group_norm, layer_norm
from _kernel_products import combination, convolution, linear, sweep
from _machine import need_gpu

KERNELS: dict[str, Callable[[list[list[int]], str], Iterator[Case]]] = {
    "groupnorm": lambda layouts, _: group_norm(layouts),
    "layernorm": lambda layouts, _: layer_norm(layouts),
    "classsums": lambda layouts, _: class_sums(layouts),
    "combination": lambda layouts, _: combination(layouts),
    "conv": convolution,
    "linear": linear,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=names(KERNELS), default=list(KERNELS))
    parser.add_argument("--layouts", type=layouts, default="2x64,10x13,100x2,1000x1", help="classes x examples of each")
    parser.add_argument("--ieee", action="store_true", help="products in full single precision, not TF32")
    parser.add_argument("--budget", type=float, default=55.0, help="seconds after which no further case is begun")
    parser.add_argument("--sweep", action="store_true", help="time ways to cut the products instead (minutes)")
    options = parser.parse_args()
    need_gpu()
    batches = [[size] * classes for classes, size in options.layouts]
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = not options.ieee
    precision = "ieee" if options.ieee else "tf32"
    torch.manual_seed(0)
    begin = time.perf_counter()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {precision}")
    if options.sweep:
        for sizes in batches:
            for line in sweep(sizes, precision):
                print(line, flush=True)
        return
    print(
        f"{'case':<44} {'ours us':>9} {'torch us':>9}{'ratio':>7} {'plain us':>9}{'ratio':>7} {'rate':>15} {'error':>8}"
    )
    for kernel in options.only:
        for case in KERNELS[kernel](batches, precision):
            if time.perf_counter() - begin > options.budget:
                print(f"{case.name:<44} left out: over the budget")
                continue
            try:
                print(measure(case), flush=True)
            except Exception as error:
                print(f"{case.name:<44} {type(error).__name__}: {str(error).splitlines()[0]:.120}", flush=True)
    print(f"{time.perf_counter() - begin:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()

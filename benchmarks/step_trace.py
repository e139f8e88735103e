"""Where the time of a captured step goes on a GPU: its kernels by name, beside those of the captured plain step.

    python benchmarks/step_trace.py [--models simple_cnn,resnet18] [--layouts 2x64,100x2] [--top 20]

"wall" is the time of a replay among many back to back, "kernels" the sum of the kernels' own times. TF32 is allowed.
"""

import argparse
import time
from collections.abc import Callable

import torch
from _arguments import layouts, names
from _contenders import CONTENDERS
from _machine import need_gpu
from _networks import MODELS
from torch.profiler import ProfilerActivity, profile

REPLAYS = 30
TRACED = 3


def wall(run: Callable[[], object]) -> float:
    """Give the seconds of a replay among many."""
    for _ in range(5):
        run()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(REPLAYS):
        run()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / REPLAYS


def kernels(run: Callable[[], object]) -> dict[str, tuple[float, float]]:
    """Give the number of launches and the microseconds of each kernel in a replay."""
    with profile(activities=[ProfilerActivity.CUDA]) as traced:
        for _ in range(TRACED):
            run()
        torch.cuda.synchronize()
    found: dict[str, tuple[float, float]] = {}
    for event in traced.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            count, total = found.get(event.name, (0.0, 0.0))
            found[event.name] = (count + 1 / TRACED, total + event.device_time / TRACED)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=names(MODELS), default="simple_cnn,resnet18,vgg16,transformer")
    parser.add_argument("--layouts", type=layouts, default="2x64,10x13,100x2,1000x1")
    parser.add_argument("--top", type=int, default=20, help="kernels to name, the longest first")
    given = parser.parse_args()
    need_gpu()
    torch.set_float32_matmul_precision("high")
    for name in given.models:
        make, inputs = MODELS[name]
        for classes, each in given.layouts:
            x, y = inputs(classes * each).cuda(), torch.arange(classes).repeat_interleave(each).cuda()
            for contender in ("plain+capt", "captured"):
                run = CONTENDERS[contender](make(classes).cuda(), x, y)
                seconds, found = wall(run), kernels(run)
                count, total = (sum(values) for values in zip(*found.values(), strict=True))
                what = f"{name} {classes}x{each} {contender}"
                print(f"{what}: wall {1e6 * seconds:.0f} us, kernels {total:.0f} us in {count:.0f}")
                for kernel, (launches, time_) in sorted(found.items(), key=lambda row: -row[1][1])[: given.top]:
                    print(f"  {time_:9.1f} us {launches:6.1f} x {kernel[:110]}", flush=True)


if __name__ == "__main__":
    main()

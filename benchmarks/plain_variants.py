"""What a captured plain step costs on a GPU in other number formats, layouts and compiled: the ground a loop stands on.

    python benchmarks/plain_variants.py [--models simple_cnn,vgg16] [--batches 128,5714]

Deterministic kernels and TF32 throughout, unless a variant says otherwise; milliseconds of a replay, update left out.
"""

import argparse

import torch
from _arguments import names
from _machine import need_gpu
from step_trace import wall
from torch.nn import functional as F

from classgrad.models import MODELS

VARIANTS: dict[str, dict[str, bool]] = {
    "tf32": {},
    "tf32, not deterministic": {"deterministic": False},
    "tf32, channels last": {"last": True},
    "bf16": {"bf16": True},
    "bf16, channels last": {"bf16": True, "last": True},
    "tf32, compiled": {"compiled": True},
    "tf32, compiled, channels last": {"compiled": True, "last": True},
    "bf16, compiled": {"bf16": True, "compiled": True},
    "bf16, compiled, channels last": {"bf16": True, "compiled": True, "last": True},
}


def seconds(
    name: str,
    batch: int,
    *,
    deterministic: bool = True,
    last: bool = False,
    bf16: bool = False,
    compiled: bool = False,
) -> float:
    """Give the seconds of a replay of forward and backward."""
    torch.backends.cudnn.deterministic = deterministic
    torch.use_deterministic_algorithms(deterministic, warn_only=True)
    memory_format = torch.channels_last if last else torch.contiguous_format
    model = MODELS[name](2).cuda().to(memory_format=memory_format)
    x = torch.randn(batch, 3, 32, 32, device="cuda").to(memory_format=memory_format)
    y = torch.randint(0, 2, (batch,), device="cuda")
    network = torch.compile(model, dynamic=False) if compiled else model

    def step() -> None:
        model.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=bf16):
            logits = network(x)
        F.cross_entropy(logits.float(), y).backward()

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return wall(graph.replay)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=names(MODELS), default="simple_cnn,vgg16")
    parser.add_argument("--batches", default="128,5714")
    given = parser.parse_args()
    need_gpu()
    torch.set_float32_matmul_precision("high")
    print("| model | variant |" + "".join(f" {batch} images, ms |" for batch in given.batches.split(",")))
    for name in given.models:
        for variant, options in VARIANTS.items():
            cells = [f" {1e3 * seconds(name, int(batch), **options):.3f} |" for batch in given.batches.split(",")]
            print(f"| {name} | {variant} |" + "".join(cells), flush=True)
            torch.compiler.reset()
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()

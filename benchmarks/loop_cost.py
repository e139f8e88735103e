"""What the training loop costs over a bare hand-written one that does the same work.

Both draw the same batches from the same data on the device, run the same model and take the same steps; the bare loop
is what one would write oneself around ``ClassGradients`` (or around ``loss.backward()`` for the plain algorithms) and
measures, checks and saves nothing. Both are run several times in turn, for a number of steps and for twice
that number; the difference of the fastest runs counts, so that all that is done once cancels (CPU time, or wall time on
a GPU).

    python benchmarks/loop_cost.py [--device cuda] [--steps 300]
"""

import argparse
import time
from collections.abc import Callable

import torch
from torch.nn import functional as F

from classgrad import ClassGradients
from classgrad.data import Dataset, DeviceData, gaussian_classes, load
from classgrad.models import build
from classgrad.sampling import BalancedBatches, ShuffledBatches
from classgrad.training import RunSpec, algorithm, train

Case = tuple[str, Dataset, str, int, torch.device]
"""Algorithm, data, model, batch size, device."""

CASES = [("gaussian-bi60", "mlp", "sgd"), ("gaussian-bi60", "mlp", "pcnsgd+o"), ("digits", "simple_cnn", "pcnsgd+o")]


def bare(name: str, data: Dataset, model_name: str, steps: int, batch_size: int, device: torch.device) -> None:
    """Train with a hand-written loop."""
    model = build(model_name, len(data.classes), data.preprocessing.shape).to(device)
    train_set = DeviceData(data.train, mean=data.mean, std=data.std, device=device)
    labels = data.train.y
    plain = name == "sgd"
    sampler = ShuffledBatches(labels, batch_size) if plain else BalancedBatches(labels, batch_size=batch_size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    grads = None if plain else ClassGradients(model, algorithm(name).make_rule())
    done = 0
    while done < steps:
        for indices in sampler.tensors(device):
            x, y = train_set.batch(indices)
            if grads is None:
                F.cross_entropy(model(x), y).backward()
            else:
                grads.backward(F.cross_entropy(model(x), y, reduction="none"), y)
            optimizer.step()
            optimizer.zero_grad()
            done += 1
            if done == steps:
                break


def looped(name: str, data: Dataset, model: str, steps: int, batch_size: int, device: torch.device) -> None:
    """Train with the library's loop, measured at the start and at the end alone."""
    spec = RunSpec(
        data.name,
        name,
        lr=0.01,
        steps=steps,
        model=model,
        batch_size=batch_size,
        device=str(device),
        grid=(steps,),
        gradients=False,
    )
    train(spec, data=data)


def seconds(way: Callable[..., None], case: Case, steps: int) -> float:
    """Give the time of one run."""
    cuda = case[-1].type == "cuda"
    clock = time.perf_counter if cuda else time.process_time
    start = clock()
    way(*case[:3], steps, *case[3:])
    if cuda:
        torch.cuda.synchronize()
    return clock() - start


def cost(case: Case, steps: int, repeats: int) -> list[float]:
    """Give the seconds of a step by hand and in the loop: what twice the steps take longer, fastest runs compared."""
    ways = [(way, count) for way in (bare, looped) for count in (steps, 2 * steps)]
    rounds = [[seconds(way, case, count) for way, count in ways] for _ in range(repeats)]
    once, twice, once_looped, twice_looped = (min(column) for column in zip(*rounds, strict=True))
    return [(twice - once) / steps, (twice_looped - once_looped) / steps]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=7)
    given = parser.parse_args()
    torch.set_num_threads(1)
    device = torch.device(given.device)
    print(f"{given.steps} steps, batch {given.batch_size}, {device}, torch {torch.__version__}")
    print(f"{'data':15s} {'model':12s} {'algorithm':10s} {'bare ms':>8s} {'loop ms':>8s} {'over':>7s}")
    for source, model, name in CASES:
        try:
            data = load(source)
        except ValueError:  # the digits need scikit-learn
            data = gaussian_classes([1000, 50], dimension=64, name="gaussian")
            model = "mlp"
        case = (name, data, model, given.batch_size, device)
        by_hand, by_loop = cost(case, given.steps, given.repeats)
        print(
            f"{data.name:15s} {model:12s} {name:10s} {1e3 * by_hand:8.3f} {1e3 * by_loop:8.3f} "
            f"{by_loop / by_hand - 1:+7.1%}"
        )


if __name__ == "__main__":
    main()

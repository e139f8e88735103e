"""What the training loop costs over a bare hand-written one that does the same work.

Both draw batches from the same sampler and the same data on the device, run the same model and take the same steps;
the bare loop is what one would write oneself around ``ClassGradients`` (or ``loss.backward()`` for plain SGD) and
checks and saves nothing. The two take turns, ten steps at a time, and the fastest turn of each counts.

    python benchmarks/loop_cost.py [--device cuda] [--turns 100]
"""

import argparse
import time
from collections.abc import Callable, Iterator

import torch
from torch.nn import functional as F

from classgrad import ClassGradients
from classgrad.data import Dataset, DeviceData, load
from classgrad.dynamics import Recorder
from classgrad.models import build
from classgrad.sampling import BalancedBatches, ShuffledBatches
from classgrad.training import RunSpec, algorithm
from classgrad.training._loop import Loop
from classgrad.training._recording import run_meta
from classgrad.training._signals import Interruption
from classgrad.training._trainer import Trainer

CASES = (
    ("gaussian-bi60", "mlp", "sgd"),
    ("gaussian-bi60", "mlp", "pcnsgd+o"),
    ("digits", "simple_cnn", "sgd"),
    ("digits", "simple_cnn", "pcnsgd+o"),
)
TURN = 10
BATCH = 128


def bare(name: str, data: Dataset, model_name: str, device: torch.device) -> Iterator[None]:
    """Train with a hand-written loop, one step at a time."""
    model = build(model_name, len(data.classes), data.preprocessing.shape).to(device)
    train_set = DeviceData(data.train, mean=data.mean, std=data.std, device=device)
    plain = name == "sgd"
    labels = data.train.y
    sampler = ShuffledBatches(labels, BATCH) if plain else BalancedBatches(labels, batch_size=BATCH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    grads = None if plain else ClassGradients(model, algorithm(name).make_rule())
    while True:
        for indices in sampler.tensors(device):
            x, y = train_set.batch(indices)
            if grads is None:
                F.cross_entropy(model(x), y).backward()
            else:
                grads.backward(F.cross_entropy(model(x), y, reduction="none"), y)
            optimizer.step()
            optimizer.zero_grad()
            yield


def looped(name: str, data: Dataset, model: str, device: torch.device) -> Iterator[None]:
    """Train with the library's loop, one step at a time."""
    spec = RunSpec(data.name, name, lr=0.01, steps=10**9, model=model, batch_size=BATCH, device=str(device), grid=())
    trainer = Trainer(spec, data, device)
    recorder = Recorder(run_meta(spec, data, device))
    loop = Loop(trainer, recorder, None, Interruption(), 60.0, None, data.preprocessing)
    while loop.step(()):
        yield


def turn(steps: Iterator[None], device: torch.device) -> float:
    """Give the seconds of a few steps."""
    start = time.perf_counter()
    for _ in range(TURN):
        next(steps)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def fastest(ways: list[Iterator[None]], turns: int, device: torch.device) -> list[float]:
    """Give the milliseconds of a step in the fastest turn of each way."""
    for steps in ways:
        turn(steps, device)
    times = [[turn(steps, device) for steps in ways] for _ in range(turns)]
    return [1e3 * min(column) / TURN for column in zip(*times, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--turns", type=int, default=60)
    given = parser.parse_args()
    torch.set_num_threads(1)
    device = torch.device(given.device)
    print(f"batch {BATCH}, {device}, torch {torch.__version__}")
    print(f"{'data':15s} {'model':12s} {'algorithm':10s} {'bare ms':>8s} {'loop ms':>8s} {'over':>7s}")
    makers: tuple[Callable[..., Iterator[None]], ...] = (bare, looped)
    for source, model, name in CASES:
        data = load(source)
        by_hand, by_loop = fastest([make(name, data, model, device) for make in makers], given.turns, device)
        print(f"{source:15s} {model:12s} {name:10s} {by_hand:8.3f} {by_loop:8.3f} {by_loop / by_hand - 1:+7.1%}")


if __name__ == "__main__":
    main()

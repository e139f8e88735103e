"""How the cost of a step and of a sampler's set-up grows: with classes, batch size, parameters, examples.

Steps are compared as in step_cost.py, with its contenders: in one process, taking turns. Every row is saved
as soon as it is there, and a run that was killed goes on after the last one. --figures draws what the file holds.

    python benchmarks/scale.py --json FILE [--only classes,batch,parameters,samplers] [--device cpu|cuda]
                               [--models mlp,simple_cnn] [--seconds 0.5] [--budget 300] [--tf32] [--grouped]
                               [--max-memory 2]
                               [--most-classes 10000] [--most-batch 16384] [--most-parameters 1e9] [--most-examples 1e8]
    python benchmarks/scale.py --json FILE --figures docs/figures
"""

from __future__ import annotations

import argparse
import gc
import json
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import sampler_rate
import torch
from _arguments import names
from _contenders import Contender, captured, plain, plain_captured, with_engine
from _machine import Row, Rows, machine_name
from _networks import MODELS, Transformer
from scale_figures import write_figures
from scale_tables import tables
from step_cost import compare
from torch import Tensor, nn

from classgrad.sampling import ProportionalBatches

CLASSES = (2, 10, 100, 1_000, 10_000)
LARGE_BATCH, SMALL_BATCH = 10_000, 128
BATCHES = (16, 64, 256, 1_024, 4_096, 16_384)
BATCH_CLASSES = 10
WIDTHS = ((128, 4), (256, 6), (512, 8), (1_024, 8), (1_536, 12), (2_048, 20))  # width and depth: 1 million to 1 billion
PARAMETER_LAYOUTS = ((2, 16), (10, 20))  # classes and batch
TOKENS = 64
EXAMPLES = (100_000, 1_000_000, 10_000_000, 100_000_000)
SAMPLER_CLASSES = (10, 1_000)

Job = tuple[Row, Callable[[], Row]]


def contenders(device: str, max_memory: int) -> dict[str, Contender]:
    """Plain and fused, as launched and on a GPU as recorded too."""
    chosen: dict[str, Contender] = {
        "plain": plain,
        "fused": partial(with_engine, engine="fused", max_memory=max_memory),
    }
    if device == "cuda":
        chosen |= {
            "plain+capt": plain_captured,
            "captured": partial(captured, max_memory=max_memory),
        }
    return chosen


def labels_of(key: Row) -> Tensor:
    """Labels of a batch, as equal as can be or 100 to 1 from the first class to the last; shuffled unless grouped."""
    classes, batch = key["classes"], key["batch"]
    if key["sizes"] == "equal":
        y = (torch.arange(batch) % classes).sort().values
    else:
        counts = ProportionalBatches(sampler_rate.long_tailed_labels(100 * batch, classes), batch).counts
        y = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    return y if key["grouped"] else y[torch.randperm(len(y), generator=torch.Generator().manual_seed(0))]


def step_row(make: Callable[[], nn.Module], x: Tensor, y: Tensor, key: Row, seconds: float) -> Row:
    """Compare the contenders on one batch, with models made on its device."""

    def on_device() -> nn.Module:
        with torch.device(x.device):
            return make()

    parameters = sum(p.numel() for p in on_device().parameters())
    results = compare(on_device, x, y, contenders(x.device.type, key["max_memory"]), seconds)
    return {"parameters": parameters, "results": results}


def named_step(key: Row, device: str, seconds: float) -> Row:
    """Measure a row of one of the networks."""
    make, inputs = MODELS[key["model"]]
    torch.manual_seed(0)
    y = labels_of(key).to(device)
    return step_row(partial(make, key["classes"]), inputs(len(y)).to(device), y, key, seconds)


def transformer_step(key: Row, device: str, seconds: float) -> Row:
    """Measure a row of a Transformer of the given width and depth."""
    make = partial(Transformer, key["classes"], width=key["width"], depth=key["depth"], length=TOKENS)
    torch.manual_seed(0)
    y = labels_of(key).to(device)
    return step_row(make, torch.randint(0, 1000, (len(y), TOKENS)).to(device), y, key, seconds)


def step_key(given: argparse.Namespace, **key: Any) -> Row:
    return {"sizes": "equal", **key, "grouped": given.grouped, "max_memory": round(given.max_memory * 2**30)}


def class_jobs(given: argparse.Namespace) -> Iterator[Job]:
    for model in given.models:
        for batch in (SMALL_BATCH, LARGE_BATCH):
            for sizes in ("equal", "tailed"):
                for classes in CLASSES:
                    # as many classes as examples are all of one size: there is no tail
                    if classes <= min(batch if sizes == "equal" else batch - 1, given.most_classes):
                        key = step_key(given, axis="classes", model=model, classes=classes, batch=batch, sizes=sizes)
                        yield key, partial(named_step, key, given.device, given.seconds)


def batch_jobs(given: argparse.Namespace) -> Iterator[Job]:
    for model in given.models:
        for batch in BATCHES:
            if batch <= given.most_batch:
                key = step_key(given, axis="batch", model=model, classes=BATCH_CLASSES, batch=batch)
                yield key, partial(named_step, key, given.device, given.seconds)


def parameter_jobs(given: argparse.Namespace) -> Iterator[Job]:
    for width, depth in WIDTHS:
        if 12 * width**2 * depth <= 1.01 * given.most_parameters:
            for classes, batch in PARAMETER_LAYOUTS:
                key = step_key(given, axis="parameters", classes=classes, batch=batch, width=width, depth=depth)
                yield key, partial(transformer_step, key, given.device, given.seconds)


def sampler_jobs(given: argparse.Namespace) -> Iterator[Job]:
    for classes in SAMPLER_CLASSES:
        for examples in EXAMPLES:
            if examples > given.most_examples:
                continue
            keys = {"axis": "samplers", "examples": examples, "classes": classes}
            labels: list[Any] = []  # made by the first job that needs them

            def run(name: str, examples: int, classes: int, labels: list[Any]) -> Row:
                if not labels:
                    labels.append(sampler_rate.long_tailed_labels(examples, classes))
                return sampler_rate.setup(sampler_rate.contenders(labels[0], 1_000)[name])

            for name in sampler_rate.contenders(np.arange(2), 2):
                yield {**keys, "sampler": name}, partial(run, name, examples, classes, labels)


AXES: dict[str, Callable[[argparse.Namespace], Iterator[Job]]] = {
    "classes": class_jobs,
    "batch": batch_jobs,
    "parameters": parameter_jobs,
    "samplers": sampler_jobs,
}


def measure(given: argparse.Namespace, rows: Rows) -> bool:
    """Measure what is not in the file yet; False where the budget ended before the rows did."""
    start = time.monotonic()
    for axis in given.only:
        for key, run in AXES[axis](given):
            if rows.find(key) is not None:
                continue
            if time.monotonic() - start > given.budget:
                return False
            began = time.monotonic()
            try:
                rows.add({**key, **run()})
            except Exception as error:  # a row that does not fit into memory must not cost the others
                print(f"not measured: {key}: {type(error).__name__}: {str(error).splitlines()[:1]}", flush=True)
            gc.collect()
            if given.device == "cuda":
                torch.cuda.empty_cache()
            print(f"{time.monotonic() - start:6.0f} s  +{time.monotonic() - began:5.1f} s  {key}", flush=True)
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True, help="file of the rows, made or gone on with")
    parser.add_argument("--only", type=names(AXES), default=list(AXES))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--models",
        type=names(MODELS),
        default="mlp,simple_cnn",
        help="for the classes and the batch axis",
    )
    parser.add_argument("--seconds", type=float, default=0.5, help="time for each contender of a row")
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds after which no new row is begun")
    parser.add_argument(
        "--grouped", action="store_true", help="labels in class order, as classgrad.sampling gives them"
    )
    parser.add_argument("--max-memory", type=float, default=2.0, help="of ClassGradients, in GiB")
    parser.add_argument("--tf32", action="store_true", help="let matrix products of a GPU use TF32")
    parser.add_argument("--most-classes", type=int, default=max(CLASSES))
    parser.add_argument("--most-batch", type=int, default=max(BATCHES))
    parser.add_argument("--most-parameters", type=float, default=1e9)
    parser.add_argument("--most-examples", type=float, default=max(EXAMPLES))
    parser.add_argument("--figures", type=Path, help="draw the file's figures into this folder and measure nothing")
    given = parser.parse_args()
    if given.figures:
        content = json.loads(given.json.read_text())
        print("\n".join(str(path) for path in write_figures(content["rows"], given.figures)))
        print(tables(content["rows"]))
        return
    warnings.simplefilter("ignore")
    if given.tf32:
        torch.set_float32_matmul_precision("high")
    machine = machine_name(given.device)
    rows = Rows(given.json, machine)
    complete = measure(given, rows)
    print(f"\n{machine}, torch {torch.__version__}, {torch.get_num_threads()} threads\n")
    print(tables(rows.content["rows"]))
    if not complete:
        print("The budget ended before the rows did: run the same command again.")


if __name__ == "__main__":
    main()

"""What a class-gradient step costs, as a ratio to the plain SGD step on the same batch.

All contenders of a row run in one process, taking turns of a few steps each, so that a slow moment of the machine hits
them alike; --turn 1 has them change after every step. The table shows the ratio of median times and, in brackets, that
of peak memory, with what a contender holds between steps (a GPU's recordings) behind a plus. Labels come shuffled, the
harder order for the fused engine (the samplers of classgrad.sampling group a batch by class); --grouped shows that one.
`through` is the fused engine with the forward left to it (backward_through), which then brings the batch into class
order first. The batch is the same at every step, and so are the labels unless they are dealt out anew (--fresh), which
is for contenders that look at them at every step: not for captured, plain+capt, autogram, autojac and vmap.

    python benchmarks/step_cost.py [--models simple_cnn,mlp] [--layouts 2x64,10x13] [--contenders fused,joint]
                                   [--device cpu|cuda] [--seconds 3] [--limit 20] [--grouped] [--tf32] [--max-memory 2]
                                   [--json FILE] [--budget 300] [--turn 8] [--fresh]
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from itertools import cycle
from pathlib import Path

import torch
from _arguments import layouts, names
from _contenders import CONTENDERS, FIXED, GRAPHS, MAX_MEMORY, OURS, Contender, hopeless
from _machine import Row, Rows, machine_name
from _networks import MODELS
from _turns import MOST, Run, settle, take_turns, timed_step, warm_up
from torch import Tensor, nn

from classgrad import ClassGradients

ORDERS = 64
"""Orders of fresh labels: more than there are layouts that ClassGradients keeps."""


def measure(
    name: str,
    layout: tuple[int, int],
    contenders: Mapping[str, Contender],
    device: str,
    seconds: float,
    grouped: bool = False,
    limit: float = 20.0,
    turn: int = MOST,
    fresh: bool = False,
) -> dict[str, dict]:
    """Compare the contenders on one of the models and a batch of so many classes times so many examples of each."""
    classes, per_class = layout
    make, inputs = MODELS[name]
    torch.manual_seed(0)
    x = inputs(classes * per_class).to(device)
    y = torch.arange(classes).repeat_interleave(per_class).to(device)
    y = y if grouped else y[torch.randperm(len(y))]
    return compare(partial(make, classes), x, y, contenders, seconds, limit, turn, _dealer(y) if fresh else lambda: y)


def _dealer(y: Tensor) -> Callable[[], Tensor]:
    """Return what deals labels out anew, in place, none of the last orders again."""
    orders = cycle([y[torch.randperm(len(y))] for _ in range(ORDERS)])
    return lambda: y.copy_(next(orders))


def compare(
    make: Callable[[], nn.Module],
    x: Tensor,
    y: Tensor,
    contenders: Mapping[str, Contender],
    seconds: float,
    limit: float = 20.0,
    turn: int = MOST,
    before: Callable[[], object] = lambda: None,
) -> dict[str, dict]:
    """Time the contenders in turns until each had its share of the seconds; report ratios to the plain step.

    What comes ``before`` every step is not counted.
    """
    device = x.device.type
    classes = len(y.unique())
    steps: dict[str, Run] = {}
    results: dict[str, dict] = {}
    watched: dict[str, ClassGradients] = {}
    base = 0.0
    gc.collect()  # what the row before left, not in the middle of a step
    for contender, prepare in contenders.items():
        torch.manual_seed(1)
        model = make().to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        reason = hopeless(contender, classes, len(x), sum(p.numel() for p in model.parameters()), base, limit)
        if reason:
            results[contender] = {"failed": reason}
            continue
        try:
            reserved = _reserved(device)
            step = prepare(model, x, y)
            run = partial(timed_step, step, optimizer, device, before)
            took = run()
            if base and took > limit and (took := run()) > limit:  # the first step may set things up
                results[contender] = {"failed": f"{took:.0f} s per step"}
                continue
            base = base or run()
            if contender not in GRAPHS:
                reserved = _reserved(device)  # not what libraries set up for themselves
            warm_up(run, device)
            held = _reserved(device) - reserved
            warm_up(run, device)
            peak = 0 if contender in GRAPHS else _peak_memory(run, device)
            results[contender] = {"memory": peak + held, "held": held}
            steps[contender] = run
            if (grads := getattr(step, "grads", None)) is not None:
                watched[contender] = grads
        except Exception as error:
            results[contender] = {"failed": f"{type(error).__name__}: {error}".splitlines()[0]}
    settle(steps, device, turn)
    earlier = {contender: asdict(grads.recordings) for contender, grads in watched.items()}
    times = take_turns(steps, seconds, turn)
    base = statistics.median(times["plain"])
    for contender, counts in earlier.items():
        if device == "cuda":
            now = asdict(watched[contender].recordings)
            results[contender]["recordings"] = {what: now[what] - count for what, count in counts.items()}
    for contender, values in times.items():
        median = statistics.median(values)
        memory = results[contender]["memory"]
        results[contender] |= {
            "seconds": median,
            "time_ratio": median / base,
            "memory_ratio": memory / results["plain"]["memory"],
            "held_ratio": results[contender]["held"] / results["plain"]["memory"],
            "repeats": len(values),
        }
    return results


def _reserved(device: str) -> int:
    """Return the bytes held from the device once all that can be given back was: a graph keeps those it works in."""
    if device != "cuda":
        return 0
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


def _peak_memory(run: Callable[[], float], device: str) -> int:
    """Return the most bytes of tensors alive during a step, beyond those alive before it."""
    if device == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run()
        return max(1, torch.cuda.max_memory_allocated() - before)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it would tell of every start and stop
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    totals = [(e["ts"], e["args"]["Bytes"]) for e in events if e.get("name") == "[memory]"]
    alive = peak = 0
    for _, size in sorted(totals):
        alive += size
        peak = max(peak, alive)
    return peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=names(MODELS), default=list(MODELS))
    parser.add_argument("--layouts", type=layouts, default="2x64,10x13,100x2,1000x1")
    on_cpu = [c for c in CONTENDERS if c not in GRAPHS]
    possible = list(CONTENDERS) if torch.cuda.is_available() else on_cpu
    parser.add_argument("--contenders", type=names(CONTENDERS), default=possible)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=3.0, help="time for each contender of a row")
    parser.add_argument("--limit", type=float, default=20.0, help="leave out what would take longer per step")
    parser.add_argument("--grouped", action="store_true", help="labels in class order")
    parser.add_argument("--fresh", action="store_true", help="labels in another order at every step")
    parser.add_argument("--tf32", action="store_true", help="let matrix products of a GPU use TF32")
    parser.add_argument("--max-memory", type=float, default=MAX_MEMORY / 2**30, help="of ClassGradients, in GiB")
    parser.add_argument("--json", type=Path, help="file of the rows, made or gone on with")
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds after which no new row is begun")
    parser.add_argument("--turn", type=int, default=MOST, help="steps that a contender makes in a row at most")
    options = parser.parse_args()
    if options.fresh and (options.grouped or (fixed := [c for c in options.contenders if c in FIXED])):
        what = "--grouped" if options.grouped else f"contenders {', '.join(fixed)}"
        parser.error(f"argument --fresh: labels that change are not for {what}")
    contenders = ["plain", *(c for c in options.contenders if c != "plain")]
    held = {"max_memory": round(options.max_memory * 2**30)}
    chosen = {c: partial(CONTENDERS[c], **(held if c in OURS else {})) for c in contenders}
    warnings.simplefilter("ignore")
    if options.tf32:
        torch.set_float32_matmul_precision("high")
    machine = machine_name(options.device)
    print(
        f"{machine}, torch {torch.__version__}, {torch.get_num_threads()} threads: time ratio (memory ratio) to plain\n"
    )
    titles = ["model", "classes × each", "plain, ms", *contenders[1:]]
    captured = all(c in contenders for c in GRAPHS)
    titles += ["captured ÷ plain captured"] if captured else []
    print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}", flush=True)
    rows = Rows(options.json, machine)
    start = time.monotonic()
    for name in options.models:
        for layout in options.layouts:
            key = {"model": name, "layout": list(layout), "contenders": contenders}
            key |= {"grouped": options.grouped, "tf32": options.tf32, "turn": options.turn, **held}
            key |= {"fresh": True} if options.fresh else {}
            found = rows.find(key)
            if found is None:
                if time.monotonic() - start > options.budget:
                    print("The budget ended before the rows did: run the same command again.")
                    return
                how = (options.device, options.seconds, options.grouped, options.limit, options.turn, options.fresh)
                found = {**key, "results": measure(name, layout, chosen, *how)}
                rows.add(found)
            show(found)


def show(row: Row) -> None:
    """Print a row of the table, and on the error stream why a contender has no time, and what was replayed."""
    results = row["results"]
    base = 1e3 * results["plain"]["seconds"]
    cells = [row["model"], " × ".join(map(str, row["layout"])), f"{base:.{1 if base >= 1 else 2}f}"]
    for contender in row["contenders"][1:]:
        r = results[contender]
        cells.append("–" if "failed" in r else f"{r['time_ratio']:.2f} ({_memory(r)})")
        if "failed" in r:
            print(f"  {contender}: {r['failed']}", file=sys.stderr)
        if "recordings" in r:
            counts = ", ".join(f"{count} {what}" for what, count in r["recordings"].items())
            print(f"  {contender}: layers and ends of steps while timed: {counts}", file=sys.stderr)
    if all(c in results for c in GRAPHS):
        times = [results[c].get("seconds") for c in GRAPHS]
        cells.append(f"{times[0] / times[1]:.2f}" if all(times) else "–")
    print(f"| {' | '.join(cells)} |", flush=True)


def _memory(result: Row) -> str:
    """Return the ratio of memory, with what stays held between steps apart."""
    held = result["held_ratio"]
    return f"{result['memory_ratio'] - held:.2f} + {held:.2f}" if held >= 0.005 else f"{result['memory_ratio']:.2f}"


if __name__ == "__main__":
    main()

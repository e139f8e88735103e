"""What a class-gradient step costs, as a ratio to the plain SGD step on the same batch.

All contenders of a row run in one process, taking turns, so that a slow moment of the machine hits them alike; the
table shows the ratio of median times and, in brackets, that of peak memory, with what a contender holds between steps
(a GPU's recordings) behind a plus. Labels come shuffled, the harder order for
the fused engine (the samplers of classgrad.sampling group a batch by class); --grouped shows that one. `through` is the
fused engine with the forward left to it (backward_through), which then brings the batch into class order first.

    python benchmarks/step_cost.py [--models simple_cnn,mlp] [--layouts 2x64,10x13] [--contenders fused,joint]
                                   [--device cpu|cuda] [--seconds 3] [--limit 20] [--grouped] [--tf32] [--max-memory 2]
                                   [--json FILE] [--budget 300]
"""

from __future__ import annotations

import argparse
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
from pathlib import Path

import torch
from _arguments import layouts, names
from _machine import Row, Rows, machine_name
from _networks import MODELS
from torch import Tensor, nn
from torch.nn import functional as F

from classgrad import ClassGradients, Normalize
from classgrad.gradients import CapturedStep

Step = Callable[[], object]
Contender = Callable[[nn.Module, Tensor, Tensor], Step]

MAX_MEMORY = 2 * 2**30  # of ClassGradients, its default
GRAPHS = ("captured", "plain+capt")  # CUDA graphs, whose memory the allocator does not see while they replay
WARM_UP = 24  # steps on a GPU


def plain(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    def step() -> None:
        F.cross_entropy(model(x), y).backward()

    return step


def with_engine(
    model: nn.Module, x: Tensor, y: Tensor, *, engine: str, gram: bool = False, max_memory: int = MAX_MEMORY
) -> Step:
    grads = ClassGradients(model, Normalize(), engine=engine, gram=gram, max_memory=max_memory)
    losses = partial(F.cross_entropy, reduction="none")
    return lambda: grads.backward_through(lambda a, b: losses(model(a), b), x, y)


def fused(model: nn.Module, x: Tensor, y: Tensor, *, gram: bool = False, max_memory: int = MAX_MEMORY) -> Step:
    """Take the step after one's own forward, on a batch in the order it came in."""
    grads = ClassGradients(model, Normalize(), gram=gram, max_memory=max_memory)

    def step() -> None:
        grads.backward(F.cross_entropy(model(x), y, reduction="none"), y)

    step.grads = grads  # type: ignore[attr-defined]
    return step


def captured(model: nn.Module, x: Tensor, y: Tensor, max_memory: int = MAX_MEMORY) -> Step:
    """Replay the whole step, update included; batches come from a sampler, grouped by class and all alike."""
    grads = ClassGradients(model, Normalize(), max_memory=max_memory)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    step = CapturedStep(grads, lambda a, b: F.cross_entropy(model(a), b, reduction="none"), optimizer)
    order = y.argsort(stable=True)
    x, y = x[order], y[order]
    return lambda: step(x, y, like="all")


def plain_captured(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    """Replay the plain step and its update as a CUDA graph: what a captured step is to be compared with."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    held = x.clone()

    def work() -> None:
        F.cross_entropy(model(held), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()

    def step() -> None:
        held.copy_(x)
        graph.replay()

    return step


def _class_sums(y: Tensor) -> Tensor:
    return F.one_hot(y.unique(return_inverse=True)[1]).T.float()


def torchjd_autogram(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    """Make the Gramian of the examples, sum it by class, then one weighted backward."""
    from torchjd.autogram import Engine

    engine = Engine(model, batch_dim=0)
    members = _class_sums(y)

    def step() -> None:
        losses = F.cross_entropy(model(x), y, reduction="none")
        gram = members @ engine.compute_gramian(losses) @ members.T
        losses.backward(gram.diagonal().rsqrt() @ members)

    return step


def torchjd_autojac(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    """Make the Jacobian of the class losses."""
    from torchjd.aggregation import GramianWeightedAggregator, Weighting
    from torchjd.autojac import backward, jac_to_grad

    class Unit(Weighting):  # type: ignore[misc]
        def forward(self, gram: Tensor, /) -> Tensor:
            return gram.diagonal().rsqrt()

    members = _class_sums(y)

    def step() -> None:
        losses = members @ F.cross_entropy(model(x), y, reduction="none")
        backward(losses)
        jac_to_grad(list(model.parameters()), GramianWeightedAggregator(Unit()))

    return step


def per_sample(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    """Per-example gradients by vmap, summed by class."""
    members = _class_sums(y)
    parameters = dict(model.named_parameters())

    def loss(values: dict[str, Tensor], a: Tensor, b: Tensor) -> Tensor:
        return F.cross_entropy(torch.func.functional_call(model, values, (a[None],)), b[None])

    gradients = torch.func.vmap(torch.func.grad(loss), (None, 0, 0), randomness="different")

    def step() -> None:
        values = {k: p.detach() for k, p in parameters.items()}
        rows = {k: members @ g.flatten(1) for k, g in gradients(values, x, y).items()}
        weights = sum(g.square().sum(1) for g in rows.values()).rsqrt()
        for name, p in parameters.items():
            p.grad = (weights @ rows[name]).view_as(p)

    return step


CONTENDERS: dict[str, Contender] = {
    "plain": plain,
    "fused": fused,
    "fused+gram": partial(fused, gram=True),
    "through": partial(with_engine, engine="fused"),
    "captured": captured,
    "plain+capt": plain_captured,
    "joint": partial(with_engine, engine="joint"),
    "split": partial(with_engine, engine="split"),
    "autogram": torchjd_autogram,
    "autojac": torchjd_autojac,
    "vmap": per_sample,
}

OURS = ("fused", "fused+gram", "through", "captured", "joint", "split")


def measure(
    name: str,
    layout: tuple[int, int],
    contenders: Mapping[str, Contender],
    device: str,
    seconds: float,
    grouped: bool = False,
    limit: float = 20.0,
) -> dict[str, dict]:
    """Compare the contenders on one of the models and a batch of so many classes times so many examples of each."""
    classes, per_class = layout
    make, inputs = MODELS[name]
    torch.manual_seed(0)
    x = inputs(classes * per_class).to(device)
    y = torch.arange(classes).repeat_interleave(per_class).to(device)
    y = y if grouped else y[torch.randperm(len(y))]
    return compare(partial(make, classes), x, y, contenders, seconds, limit)


def compare(
    make: Callable[[], nn.Module],
    x: Tensor,
    y: Tensor,
    contenders: Mapping[str, Contender],
    seconds: float,
    limit: float = 20.0,
) -> dict[str, dict]:
    """Time the contenders in turns until each had its share of the seconds; report ratios to the plain step."""
    device = x.device.type
    classes = len(y.unique())
    steps: dict[str, Callable[[], float]] = {}
    results: dict[str, dict] = {}
    watched: dict[str, ClassGradients | None] = {}
    base = 0.0
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
            run = partial(_step, step, optimizer, device)
            run()
            base = base or run()
            if contender not in GRAPHS:
                reserved = _reserved(device)  # not what libraries set up for themselves
            _warm_up(run, device)
            held = _reserved(device) - reserved
            _warm_up(run, device)
            peak = 0 if contender in GRAPHS else _peak_memory(run, device)
            results[contender] = {"memory": peak + held, "held": held}
            watched[contender] = getattr(step, "grads", None)
            steps[contender] = run
        except Exception as error:
            results[contender] = {"failed": f"{type(error).__name__}: {error}".splitlines()[0]}
    times: dict[str, list[float]] = {c: [] for c in steps}
    start = time.perf_counter()
    while time.perf_counter() - start < seconds * len(steps) or len(times["plain"]) < 3:
        for contender, run in steps.items():
            times[contender].append(run())
    base = statistics.median(times["plain"])
    for contender, grads in watched.items():
        if grads is not None and device == "cuda":
            results[contender]["recordings"] = asdict(grads.recordings)
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


def hopeless(contender: str, classes: int, examples: int, parameters: int, base: float, limit: float) -> str | None:
    """Say why a contender is not even tried: a pass per class, or a gradient per class or example, is too much."""
    passes = classes if contender in ("joint", "split", "autojac") else 1
    if passes * base > limit:
        return f"about {passes * base:.0f} s per step"
    copies = {"vmap": examples, "autojac": classes}.get(contender, 0)
    if 4 * copies * parameters > 12 * 2**30:
        return f"{4 * copies * parameters / 2**30:.0f} GiB of gradients"
    return None


def _step(gradient: Step, optimizer: torch.optim.Optimizer, device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    gradient()
    optimizer.step()
    optimizer.zero_grad()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def _warm_up(run: Callable[[], float], device: str) -> None:
    """Make steps until those of a GPU have recorded what they replay, or a second is over."""
    start = time.perf_counter()
    for _ in range(WARM_UP if device == "cuda" else 0):
        if time.perf_counter() - start < 1:
            run()


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
    parser.add_argument("--tf32", action="store_true", help="let matrix products of a GPU use TF32")
    parser.add_argument("--max-memory", type=float, default=MAX_MEMORY / 2**30, help="of ClassGradients, in GiB")
    parser.add_argument("--json", type=Path, help="file of the rows, made or gone on with")
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds after which no new row is begun")
    options = parser.parse_args()
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
            key |= {"grouped": options.grouped, "tf32": options.tf32, **held}
            found = rows.find(key)
            if found is None:
                if time.monotonic() - start > options.budget:
                    print("The budget ended before the rows did: run the same command again.")
                    return
                how = (options.device, options.seconds, options.grouped, options.limit)
                found = {**key, "results": measure(name, layout, chosen, *how)}
                rows.add(found)
            show(found)


def show(row: Row) -> None:
    """Print a row of the table, and on the error stream why a contender has no time, and what was replayed."""
    results = row["results"]
    cells = [row["model"], " × ".join(map(str, row["layout"])), f"{1e3 * results['plain']['seconds']:.1f}"]
    for contender in row["contenders"][1:]:
        r = results[contender]
        cells.append("–" if "failed" in r else f"{r['time_ratio']:.2f} ({_memory(r)})")
        if "failed" in r:
            print(f"  {contender}: {r['failed']}", file=sys.stderr)
        if "recordings" in r:
            counts = ", ".join(f"{count} {what}" for what, count in r["recordings"].items())
            print(f"  {contender}: layers and ends of steps {counts}", file=sys.stderr)
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

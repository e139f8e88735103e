"""What remembered norms save, and what they cost in truth: ``Normalize(refresh=k)`` for several k.

``price`` times exact steps and steps by remembered norms, as ratios to the plain SGD step on the same batch; they take
turns and the median counts. The price of k is that of one exact step and k - 1 of the others, over k.

``truth`` trains with every k and compares, at every step that went by remembered norms, its direction with the exact
one of the same batch at the same iterate: the angle between them and the error of its length; then how soon and how
well the classes were learned. A way such as "2 held" is drift=2 with follow=False. Runs that are in --out already are
read, not repeated.

    python benchmarks/lazy_norms.py price [--models mlp,simple_cnn] [--layouts 2x64,10x13] [--seconds 10] [--tf32]
    python benchmarks/lazy_norms.py truth [--problems digits-bi20,gaussian-bi60] [--algorithms pcngd,pcnsgd,pcnsgd+o]
                                          [--seeds 5] [--steps N] [--lr RATE] [--look 1]
                                          [--ways 2,off,"off held"] [--data-dir DIR] [--out runs/lazy-norms]

Both take [--refresh 1,2,5,10,50] [--device cpu|cuda] [--json FILE]. The problem bi7a needs CIFAR and, better, a GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _arguments import layouts, names
from _contenders import Step, plain
from _networks import MODELS
from _turns import settle, take_turns, timed_step, warm_up
from torch import Tensor, nn
from torch.nn import functional as F

from classgrad import ClassGradients, Normalize
from classgrad.data import Dataset, load
from classgrad.dynamics import Recorder, Run, load_run, save_run, summarize
from classgrad.training import ALGORITHMS, RunSpec
from classgrad.training._loop import Loop
from classgrad.training._numerics import repeatable, resolve_device
from classgrad.training._recording import run_meta
from classgrad.training._signals import Interruption
from classgrad.training._streams import forked
from classgrad.training._trainer import Trainer
from classgrad.training._update import Update

PROBLEMS: dict[str, dict[str, Any]] = {
    "digits-bi20": {"lr": 0.1, "steps": 200, "batch_size": 64, "model_options": {"hidden": [64]}},
    "digits-mul10": {"lr": 0.1, "steps": 200, "batch_size": 64, "model_options": {"hidden": [64]}},
    "gaussian-bi60": {"lr": 0.05, "steps": 200, "batch_size": 122, "model_options": {"hidden": [16]}},
    # whole batches at once: in chunks every step is exact
    "bi7a": {"lr": 0.05, "steps": 1000, "batch_size": 128, "model": "simple_cnn", "chunk": 10**9},
}
NEVER = 1e9  # a drift that no class reaches


def lazy(model: nn.Module, x: Tensor, y: Tensor, refresh: int, through: bool) -> Step:
    grads = ClassGradients(model, Normalize(refresh=refresh, drift=NEVER), max_memory=8 * 2**30)

    def losses(a: Tensor, b: Tensor) -> Tensor:
        return F.cross_entropy(model(a), b, reduction="none")

    return (lambda: grads.backward_through(losses, x, y)) if through else (lambda: grads.backward(losses(x, y), y))


def price(name: str, layout: tuple[int, int], device: str, seconds: float) -> dict[str, float]:
    """Median seconds of a plain step, an exact one, and one by remembered norms with the layers at rest or watched."""
    classes, per_class = layout
    make, inputs = MODELS[name]
    torch.manual_seed(0)
    x = inputs(classes * per_class).to(device)
    y = torch.arange(classes).repeat_interleave(per_class)[torch.randperm(classes * per_class)].to(device)
    contenders: dict[str, Callable[[nn.Module], Step]] = {
        "plain": lambda model: plain(model, x, y),
        "exact": lambda model: lazy(model, x, y, 1, through=True),
        "lazy": lambda model: lazy(model, x, y, 10**9, through=True),
        "watched": lambda model: lazy(model, x, y, 10**9, through=False),
    }
    runs = {}
    for contender, start in contenders.items():
        torch.manual_seed(1)
        model = make(classes).to(device)
        runs[contender] = partial(timed_step, start(model), torch.optim.SGD(model.parameters(), lr=1e-3), device)
        runs[contender]()
        warm_up(runs[contender], device)
    settle(runs, device)
    times = take_turns(runs, seconds / len(runs))
    return {contender: statistics.median(values) for contender, values in times.items()}


@dataclass(frozen=True)
class Seen:
    """A run, which of its steps were exact, and the errors of those looked at of the others.

    Errors are an angle in degrees and a length over the exact length; nan where nobody looked.
    """

    run: Run
    exact: np.ndarray
    angles: np.ndarray
    lengths: np.ndarray


def errors(table: Tensor, weights: Tensor) -> tuple[float, float]:
    """Angle and ratio of lengths between Σ w_l g_l and Σ g_l/‖g_l‖."""
    rows = table.double()
    gram = rows @ rows.T
    norms = gram.diagonal().sqrt()
    exact = torch.where(norms > 0, 1 / norms, 0)
    found = weights.double().to(exact)
    square, target, product = found @ gram @ found, exact @ gram @ exact, found @ gram @ exact
    cosine = float(product / (square * target).sqrt())
    return math.degrees(math.acos(max(-1.0, min(1.0, cosine)))), float((square / target).sqrt())


def rule_options(refresh: int, way: str) -> dict[str, Any]:
    """Read a way such as "2", "off" or "off held": the drift, and whether norms are held rather than following."""
    if refresh == 1:
        return {"refresh": 1}
    drift, *held = way.split()
    return {"refresh": refresh, "drift": NEVER if drift == "off" else float(drift), "follow": not held}


def watched_run(spec: RunSpec, dataset: Dataset, look: int) -> Seen:
    """Train, and look at the steps that went by remembered norms, or at one step in ``look``."""
    device = resolve_device(spec.device)
    exact, angles, lengths = (np.full(spec.steps, value) for value in (1.0, np.nan, np.nan))
    with repeatable(device, spec.precision, spec.threads), forked(device):
        trainer = Trainer(spec, dataset, device)
        update = trainer.update

        def watched(indices: Tensor) -> Update:
            table = None
            if trainer.step % look == 0:
                _, losses, y = trainer.forward(trainer.train, indices)
                table = trainer.class_gradients()[1].gradients(losses, y).matrix
            made = update(indices)
            if made.seen.norms is None:
                exact[made.number] = 0
                if table is not None:
                    angles[made.number], lengths[made.number] = errors(table, made.seen.weights)
            return made

        if spec.rule_options["refresh"] > 1:
            trainer.update = watched  # type: ignore[method-assign]
        recorder = Recorder(run_meta(spec, dataset, device))
        run = finished(Loop(trainer, recorder, None, Interruption(), 60.0, None, dataset.preprocessing))
        trainer.close()
    return Seen(run, exact, angles, lengths)


def finished(loop: Loop) -> Run:
    steps = loop.run(resume=False)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            run: Run = end.value
            return run


def seen(spec: RunSpec, dataset: Dataset, out: Path, look: int) -> Seen:
    """Read a run that was made before, or make it."""
    folder = out / f"{spec.identity(dataset.fingerprint)}-{look}"
    record, facts = folder / "run.npz", folder / "errors.npz"
    if facts.exists():
        arrays = np.load(facts)
        return Seen(load_run(record), arrays["exact"], arrays["angles"], arrays["lengths"])
    made = watched_run(spec, dataset, look)
    folder.mkdir(parents=True, exist_ok=True)
    save_run(made.run, record)
    np.savez(facts.with_suffix(".tmp.npz"), exact=made.exact, angles=made.angles, lengths=made.lengths)
    facts.with_suffix(".tmp.npz").replace(facts)
    return made


def row(group: list[Seen]) -> dict[str, Any]:
    """Sum up the seeds of one setting: means and standard deviations over them."""
    runs = [one.run for one in group]
    found = summarize(runs)
    lazies = [~np.isnan(one.angles) for one in group]
    angles = [one.angles[at] for one, at in zip(group, lazies, strict=True) if at.any()]
    lengths = [np.abs(one.lengths[at] - 1) for one, at in zip(group, lazies, strict=True) if at.any()]
    times = [step for step in found.tau.times if step is not None]
    peaks = [100 * run.macro_recall("test").max() for run in runs]
    finals = [100 * run.macro_recall("test")[-1] for run in runs]
    minority = [100 * run.minority_recall("test")[-1] for run in runs]
    return {
        "exact": float(np.mean([one.exact.mean() for one in group])),
        "angle": float(np.mean([a.mean() for a in angles])) if angles else 0.0,
        "worst_angle": float(max((a.max() for a in angles), default=0.0)),
        "length": float(np.mean([v.mean() for v in lengths])) if lengths else 0.0,
        "worst_length": float(max((v.max() for v in lengths), default=0.0)),
        "reached": len(times),
        "runs": len(runs),
        "tau": _spread(times),
        "peak": _spread(peaks),
        "final": _spread(finals),
        "minority": _spread(minority),
        "mid": found.mid_fraction,
        "statuses": found.statuses,
    }


def _spread(values: list[float]) -> tuple[float, float]:
    """Return mean and standard deviation; NaN for what so few values do not tell."""
    mean = float(np.mean(values)) if values else math.nan
    return mean, float(np.std(values, ddof=1)) if len(values) > 1 else math.nan


def _told(spread: tuple[float, float]) -> str:
    mean, deviation = spread
    return f"{mean:.1f}" if math.isnan(deviation) else f"{mean:.1f} ± {deviation:.1f}"


def cells_of(k: int, way: str, found: dict[str, Any]) -> list[str]:
    return [
        str(k),
        "–" if k == 1 else way,
        f"{100 * found['exact']:.0f} %",
        "–" if k == 1 else f"{found['angle']:.1f}° ({found['worst_angle']:.1f}°)",
        "–" if k == 1 else f"{100 * found['length']:.0f} % ({100 * found['worst_length']:.0f} %)",
        _told(found["tau"]) if found["reached"] == found["runs"] else f"{found['reached']} of {found['runs']} reach it",
        *map(_told, (found["peak"], found["final"], found["minority"])),
        f"{100 * found['mid']:.0f} %",
    ]


def show_price(options: argparse.Namespace) -> list[dict[str, Any]]:
    if options.tf32:
        torch.set_float32_matmul_precision("high")
    print("| model | classes × each | plain, ms |" + "".join(f" k = {k} |" for k in options.refresh), end="")
    print(f" lazy alone | lazy, `backward` |\n|{'---|' * (len(options.refresh) + 5)}", flush=True)
    rows = []
    for name in options.models:
        for layout in options.layouts:
            found = price(name, layout, options.device, options.seconds)
            base, exact, light, watched = (found[key] for key in ("plain", "exact", "lazy", "watched"))
            steps = [*((exact + (k - 1) * light) / k for k in options.refresh), light, watched]
            rows.append({"model": name, "layout": layout, **found})
            cells = [name, f"{layout[0]} × {layout[1]}", f"{base * 1e3:.1f}", *(f"{step / base:.2f}" for step in steps)]
            print(f"| {' | '.join(cells)} |", flush=True)
    return rows


def show_truth(options: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    instead = {name: value for name in ("steps", "lr") if (value := getattr(options, name)) is not None}
    head = ["k", "way", "exact steps", "angle", "length error", "τ", "peak, %", "final, %", "minority, %", "MID"]
    for problem in options.problems:
        dataset = load(problem, data_dir=options.data_dir)
        for algorithm in options.algorithms:
            print(f"\n{problem}, {algorithm}, {options.seeds} seeds\n\n| {' | '.join(head)} |\n|{'---|' * len(head)}")
            for k in options.refresh:
                for way in options.ways[:1] if k == 1 else options.ways:
                    group = []
                    for seed in range(options.seeds):
                        print(
                            f"\r{problem}, {algorithm}: k={k}, {way}, seed {seed}   ",
                            end="",
                            file=sys.stderr,
                            flush=True,
                        )
                        spec = RunSpec(
                            problem,
                            algorithm,
                            seed=seed,
                            grid="log:40",
                            gradients=False,
                            device=options.device,
                            rule_options=rule_options(k, way),
                            **PROBLEMS[problem] | instead,
                        )
                        group.append(seen(spec, dataset, options.out, options.look))
                    print("\r\033[K", end="", file=sys.stderr)
                    found = row(group)
                    rows.append({"problem": problem, "algorithm": algorithm, "refresh": k, "way": way, **found})
                    print(f"| {' | '.join(cells_of(k, way, found))} |", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=("price", "truth"))
    parser.add_argument("--refresh", type=lambda text: [int(v) for v in text.split(",")], default=[1, 2, 5, 10, 50])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--models", type=names(MODELS), default="mlp,simple_cnn")
    parser.add_argument("--layouts", type=layouts, default="2x64,10x13")
    parser.add_argument("--seconds", type=float, default=10.0, help="time for each row")
    parser.add_argument("--tf32", action="store_true", help="let matrix products of a GPU use TF32")
    parser.add_argument("--problems", type=names(PROBLEMS), default="digits-bi20,gaussian-bi60")
    parser.add_argument("--algorithms", type=names(ALGORITHMS), default="pcngd,pcnsgd,pcnsgd+o")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, help="of a run, in place of the problem's own number")
    parser.add_argument("--lr", type=float, help="learning rate of a run, in place of the problem's own")
    parser.add_argument("--look", type=int, default=1, help="compare one step in so many; coprime to every k")
    parser.add_argument("--ways", type=lambda text: text.split(","), default=["2", "off", "off held"])
    parser.add_argument("--data-dir")
    parser.add_argument("--out", type=Path, default=Path("runs/lazy-norms"))
    options = parser.parse_args()
    machine = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    print(f"{machine}, torch {torch.__version__}, {torch.get_num_threads()} threads\n", flush=True)
    rows = show_price(options) if options.table == "price" else show_truth(options)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()

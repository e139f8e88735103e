"""``classgrad theory``: the paper's theorems on toy problems, on a run of one's own, and the noise of batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, cast, get_args

import torch
import typer

from classgrad._errors import InputError
from classgrad.cli._console import Json, Output, Quiet
from classgrad.cli._source import DataDir, DataOptions, Protocol, Target, load_source
from classgrad.cli._theory_figures import draw_analysis, draw_noise
from classgrad.cli._theory_source import RECORD, NoiseSource, drawn_source, trained_source
from classgrad.dynamics import load_run
from classgrad.theory import TOYS, Bound, CheckRow, NoiseStudy, RunAnalysis, Statement, analyze_run, noise_study
from classgrad.theory import check as check_problem

app = typer.Typer(help="The paper's theorems, checked: on toy problems, on a run, on data.", no_args_is_help=True)

StatementOption = Annotated[
    str,
    typer.Option(
        metavar="|".join(get_args(Statement)),
        help="The paper's statement with its mistakes mended, as printed, without its avoidable losses, or (PCNSGD) "
        "with the angles of the mini-batches.",
    ),
]
FigureOut = Annotated[
    Path | None, typer.Option(help="PNG or PDF file for the figure, or a folder for it.", show_default=False)
]


@app.command()
def check(
    problem: Annotated[
        list[str] | None,
        typer.Option(metavar="|".join(TOYS), help="Toy problem, may be repeated; all by default.", show_default=False),
    ] = None,
    steps: Annotated[int, typer.Option(metavar="N", help="Steps of every run.", min=1)] = 200,
    statement: StatementOption = "corrected",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run every theorem on the toy problems: where its assumptions are met, whether its bound holds, how tight it is.

    The exit code is 1 if a proved bound is violated. The printed statements are not all proved: see docs/theory.md.
    """
    out = Output(json, quiet)
    chosen = _statement(statement)
    names = problem or list(TOYS)
    for name in names:
        if name not in TOYS:
            raise InputError(f"--problem must be one of {', '.join(TOYS)}; found {name!r}")
    with out.progress() as progress:
        found = {
            name: check_problem(TOYS[name](), steps=steps, statement=chosen)
            for name in progress.track(names, description="running")
        }
    out.table(
        ["problem", "theorem", "of the paper", "assumptions met", "bound", "tightest left/right"],
        [(name, *_check_cells(row)) for name, rows in found.items() for row in rows],
    )
    out.document([{"problem": name, **asdict(row)} for name, rows in found.items() for row in rows])
    violated = [row for rows in found.values() for row in rows if not row.held]
    out.say(_verdict(sum(map(len, found.values())), violated, chosen))
    if any(row.proved for row in violated):
        raise typer.Exit(1)


@app.command("run")
def run_(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, or its record (.npz).")],
    statement: StatementOption = "corrected",
    out: FigureOut = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Apply the theory to a recorded run: who was predicted to get worse and did, and how tight the bounds are.

    The bounds need every step of a full-batch run (classgrad train ... --algorithm gd --grid all). L_2 is read off
    the run itself, so that they show how tight the theory is, not whether it is true.
    """
    output = Output(json, quiet)
    record = run / RECORD if run.is_dir() else run
    found = analyze_run(load_run(record), statement=_statement(statement))
    figure = draw_analysis(found, _figure_path(out, record.parent, "theory.png"))
    _describe(output, found)
    output.say(f"figure: {figure}")
    output.document({**_analysis_facts(found), "figure": str(figure)})


@app.command()
def noise(
    source: Annotated[
        str,
        typer.Argument(
            metavar="RUN|DATA",
            help="Folder of a run (its trained model), or data as for 'classgrad train' (a network yet to learn).",
        ),
    ],
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Network for DATA; by default simple_cnn for images, else mlp.")
    ] = None,
    batch_sizes: Annotated[
        str | None, typer.Option(metavar="LIST", help="Batch sizes, as 16,64,256.", show_default=False)
    ] = None,
    examples: Annotated[
        int, typer.Option(metavar="N", help="Training examples to look at, in their proportions.", min=2)
    ] = 1000,
    draws: Annotated[int, typer.Option(metavar="N", help="Random batches of every size.", min=2)] = 200,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the network, the examples and the batches.", min=0)] = 0,
    protocol: Protocol = "paper",
    data_dir: DataDir = None,
    target: Target = None,
    option: DataOptions = None,
    out: FigureOut = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare the directions of random batches with Eq. "proj", class by class and batch size by batch size."""
    output = Output(json, quiet)
    generator = torch.Generator().manual_seed(seed)
    folder = Path(source)
    is_run = (folder / RECORD).is_file()
    if is_run:
        gathered = trained_source(folder, examples, generator, data_dir)
    else:
        data = load_source(
            source, protocol=protocol, data_dir=data_dir, target=target, options=option, progress=output.talks
        )
        gathered = drawn_source(data, model, examples, generator)
    sizes = _sizes(batch_sizes, gathered)
    study = noise_study(gathered.gradients, sizes, draws=draws, generator=generator)
    place = _figure_path(out, folder if is_run else Path(), "noise.png")
    figure = draw_noise(study, gathered.classes, gathered.title, place)
    rows = _noise_rows(study, gathered.classes)
    output.table(_NOISE_COLUMNS, map(_noise_cells, rows), title=gathered.title)
    output.say(f"figure: {figure}")
    output.document({"title": gathered.title, "rows": rows, "figure": str(figure)})


_NOISE_COLUMNS = (
    "batch",
    "class",
    "of it",
    "projection",
    "Eq. proj",
    "all orders",
    "attenuation ratio",
    "ñ_0/ñ_l",
    "ν",
)


def _noise_rows(study: NoiseStudy, classes: Sequence[str]) -> list[dict[str, Any]]:
    numbers = {
        "projection": study.measured,
        "error": study.error,
        "predicted": study.predicted,
        "saturating": study.saturating,
        "attenuation_ratio": study.attenuation_ratio,
        "predicted_ratio": study.predicted_ratio,
        "imbalance": study.imbalance,
        "nu": study.nu,
    }
    return [
        {
            "batch_size": size,
            "class": name,
            "examples": int(study.per_class[row, label]),
            **{key: float(values[row, label]) for key, values in numbers.items()},
        }
        for row, size in enumerate(study.batch_sizes)
        for label, name in enumerate(classes)
    ]


def _noise_cells(row: dict[str, Any]) -> Sequence[object]:
    numbers = [f"{row[key]:.3f}" for key in ("predicted", "saturating")]
    ratios = [f"{row[key]:.2f}" for key in ("attenuation_ratio", "imbalance", "nu")]
    projection = f"{row['projection']:.3f} ± {row['error']:.3f}"
    return row["batch_size"], row["class"], row["examples"], projection, *numbers, *ratios


def _statement(text: str) -> Statement:
    if text not in get_args(Statement):
        raise InputError(f"--statement must be one of {', '.join(get_args(Statement))}; found {text!r}")
    return cast(Statement, text)


def _check_cells(row: CheckRow) -> Sequence[object]:
    if row.steps_met == 0:
        return row.theorem, row.title, "never", "-", "-"
    met = f"{row.steps_met} of {row.steps} steps, {row.classes_met} of {row.classes} classes"
    return row.theorem, row.title, met, "held" if row.held else "VIOLATED", f"{row.tightest:.3f}"


def _verdict(count: int, violated: list[CheckRow], statement: Statement) -> str:
    if not violated:
        return f"{count} bounds, none violated at any step at which its assumptions are met."
    names = ", ".join(dict.fromkeys(row.theorem for row in violated))
    known = "; docs/theory.md says why" if statement == "printed" else ""
    return f"{len(violated)} of {count} bounds violated: {names}{known}."


def _figure_path(out: Path | None, folder: Path, name: str) -> Path:
    if out is None:
        return folder / name
    return out if out.suffix else out / name


def _describe(output: Output, found: RunAnalysis) -> None:
    run = found.run
    lowest = found.margin.amin(0)
    output.table(
        ["class", "examples", "steps seen", "predicted worse", "got worse", "both", "at steps", "smallest margin"],
        [
            (
                name,
                f"{run.counts[label]:,}",
                int((~found.measured[:, label].isnan()).sum()),
                int(found.predicted_worse[:, label].sum()),
                int(found.got_worse[:, label].sum()),
                int((found.predicted_worse & found.got_worse)[:, label].sum()),
                _ranges(run.steps[(found.predicted_worse & found.got_worse)[:, label].numpy()].tolist()),
                f"{float(lowest[label]):.4g}",
            )
            for label, name in enumerate(run.classes)
        ],
        title=f"{run.meta.get('algorithm')} on {run.meta.get('data')}, {len(run.steps)} points",
    )
    if found.bounds:
        output.table(
            ["bound", "assumptions met", "bound", "tightest left/right", "estimated constants"],
            [(bound.name, *_bound_cells(bound)) for bound in found.bounds],
        )
    else:
        output.say(f"no bounds: {found.why_no_bounds}")
    output.say(
        f"end of the run: {float(found.end.gd):.3g} from a fixed point of GD, {float(found.end.pcngd):.3g} from one of "
        "PCNGD (0 at one, 1 where all class gradients are parallel)"
    )


def _ranges(steps: Sequence[int], most: int = 4) -> str:
    """Write steps as ranges.

    >>> _ranges([0, 1, 2, 7, 9, 10])
    '0-2, 7, 9-10'
    """
    known = set(steps)
    starts = [step for step in steps if step - 1 not in known]
    ends = [step for step in steps if step + 1 not in known]
    texts = [str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True)]
    return ", ".join(texts[:most]) + (", ..." if len(texts) > most else "")


def _bound_cells(bound: Bound) -> Sequence[object]:
    met = int(bound.met.any(-1).sum())
    held = "never" if met == 0 else "VIOLATED" if bool(bound.violated.any()) else "held"
    return f"{met} of {len(bound.left)} steps", held, f"{bound.tightest:.3f}", ", ".join(bound.estimated)


def _analysis_facts(found: RunAnalysis) -> dict[str, Any]:
    run = found.run
    return {
        "algorithm": run.meta.get("algorithm"),
        "data": run.meta.get("data"),
        "steps": run.steps.tolist(),
        "classes": list(run.classes),
        "margin": found.margin.tolist(),
        "predicted_change": found.predicted.tolist(),
        "measured_change": found.measured.tolist(),
        "predicted_worse": found.predicted_worse.sum(0).tolist(),
        "got_worse": found.got_worse.sum(0).tolist(),
        "both": (found.predicted_worse & found.got_worse).sum(0).tolist(),
        "both_at_steps": [
            run.steps[mask.numpy()].tolist() for mask in (found.predicted_worse & found.got_worse).unbind(-1)
        ],
        "largest_step": found.limit.tolist(),
        "smoothness": found.constants.smoothness.value.tolist(),
        "smoothness_from": found.constants.smoothness.how,
        "bounds": [
            {
                "name": bound.name,
                "statement": bound.statement,
                "steps_met": int(bound.met.any(-1).sum()),
                "violated": bool(bound.violated.any()),
                "tightest": bound.tightest,
                "estimated": list(bound.estimated),
            }
            for bound in found.bounds
        ],
        "why_no_bounds": found.why_no_bounds or None,
        "fixed_points": {"gd": float(found.end.gd), "pcngd": float(found.end.pcngd)},
    }


def _sizes(text: str | None, gathered: NoiseSource) -> list[int]:
    if text is None:
        return gathered.usual_sizes()
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise InputError(f"--batch-sizes must be whole numbers such as 16,64,256; found {text!r}") from None

"""The rows of scale.py as markdown tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Row = dict[str, Any]


def tables(rows: Sequence[Row]) -> str:
    """One table for every axis that has rows."""
    parts = [
        _table(titles, [cells(row) for row in rows if row["axis"] == axis]) for axis, (titles, cells) in TABLES.items()
    ]
    return "\n".join(part for part in parts if part)


def recorded_ratio(row: Row) -> float | None:
    """Time of the captured class-gradient step over that of the captured plain step."""
    ours, plain = (row["results"].get(name, {}).get("seconds") for name in ("captured", "plain+capt"))
    return ours / plain if ours and plain else None


def total_memory_ratio(row: Row, ours: str = "fused", plain: str = "plain") -> float | None:
    """Peak memory of a step over that of a plain one, the parameters themselves included in both."""
    held = 4 * row["parameters"]
    found = [row["results"].get(name, {}).get("memory") for name in (ours, plain)]
    return (held + found[0]) / (held + found[1]) if all(value is not None for value in found) else None


def _table(titles: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    if not lines:
        return ""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (titles, ["---"] * len(titles), *lines)) + "\n"


def _ms(row: Row, name: str) -> str:
    found = row["results"].get(name, {})
    return f"{1e3 * found['seconds']:.2f}" if "seconds" in found else "–"


def _ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _fused(row: Row, key: str) -> float | None:
    value: float | None = row["results"].get("fused", {}).get(key)
    return value


def _times(row: Row) -> list[str]:
    return [
        _ms(row, "plain"),
        _ratio(_fused(row, "time_ratio")),
        _ratio(_fused(row, "memory_ratio")),
        _ms(row, "plain+capt"),
        _ratio(recorded_ratio(row)),
    ]


def _steps(row: Row) -> list[str]:
    return [row["model"], f"{row['batch']:,}", row["sizes"], f"{row['classes']:,}", *_times(row)]


def _parameters(row: Row) -> list[str]:
    memory = [total_memory_ratio(row), total_memory_ratio(row, "captured", "plain+capt")]
    return [
        f"{row['parameters'] / 1e6:,.1f} M",
        str(row["classes"]),
        str(row["batch"]),
        *_times(row),
        *map(_ratio, memory),
    ]


def _samplers(row: Row) -> list[str]:
    each = row["examples"]
    per_example = [f"{row[name] / each:.1f}" for name in ("setup_bytes", "first_bytes", "kept_bytes")]
    return [
        row["sampler"],
        f"{row['classes']:,}",
        f"{each:,}",
        f"{row['setup_seconds']:.3f}",
        f"{row['first_seconds']:.3f}",
        f"{1e9 * row['setup_seconds'] / each:.0f}",
        *(per_example if each >= 10_000_000 else ["–"] * 3),  # memory a process has already hides smaller ones
    ]


_TIMES = ("plain, ms", "fused", "memory", "plain captured, ms", "captured / plain captured")
_BYTES = ("set-up peak, B/example", "first-batch peak, B/example", "kept, B/example")
_STEPS = (("model", "batch", "sizes", "classes", *_TIMES), _steps)
TABLES: dict[str, tuple[Sequence[str], Callable[[Row], list[str]]]] = {
    "classes": _STEPS,
    "batch": _STEPS,
    "parameters": (
        ("parameters", "classes", "batch", *_TIMES, "total memory", "total memory, captured"),
        _parameters,
    ),
    "samplers": (
        ("sampler", "classes", "examples", "set-up, s", "first batch, s", "set-up, ns/example", *_BYTES),
        _samplers,
    ),
}

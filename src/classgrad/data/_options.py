"""Options given by name, checked against what a function takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from classgrad._errors import InputError
from classgrad.data._dataset import Dataset

Build = Callable[..., Dataset]


def option_defaults(build: Build) -> dict[str, Any]:
    """Return the keyword-only parameters of ``build`` with their defaults; ``inspect.Parameter.empty`` if required."""
    parameters = inspect.signature(build).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def build_with(build: Build, subject: str, source: object, options: Mapping[str, Any]) -> Dataset:
    """``build(source, **options)``; ``subject`` names in errors what was to be loaded."""
    known = option_defaults(build)
    unknown = sorted(set(options) - set(known))
    if unknown:
        takes = f"it takes {', '.join(known)}" if known else "it takes none"
        raise InputError(f"{subject} has no option {unknown[0]!r}: {takes}")
    missing = [name for name, default in known.items() if default is inspect.Parameter.empty and name not in options]
    if missing:
        raise InputError(f"{subject} needs the option {missing[0]!r}")
    return build(source, **options)

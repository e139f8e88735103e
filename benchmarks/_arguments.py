"""Lists on the command line of a benchmark; argparse says in one line what is wrong with them."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable


def names(known: Iterable[str]) -> Callable[[str], list[str]]:
    """Return what reads names by commas, all of which must be known."""
    choices = list(known)

    def read(text: str) -> list[str]:
        for name in (chosen := text.split(",")):
            if name not in choices:
                raise ArgumentTypeError(f"{name!r} is none of {', '.join(choices)}")
        return chosen

    return read


def layouts(text: str) -> list[tuple[int, int]]:
    """Read such as 2x64,10x13: classes and examples of each."""
    found = [re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", layout) for layout in text.split(",")]
    if not all(found):
        raise ArgumentTypeError(f"{text!r} is not classes x examples of each, such as 2x64,10x13")
    return [(int(match[1]), int(match[2])) for match in found if match]

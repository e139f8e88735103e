"""Colours that people with any colour vision can tell apart, on white paper and on a dark screen.

Classes get a ramp from majority to minority whose lightness rises all the way (also as seen with protanopia,
deuteranopia or tritanopia); algorithms get the hues of Okabe and Ito (2008), less the yellow that white paper swallows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

THEMES = ("light", "dark")

_CLASS_ANCHORS = {
    "light": ("#15226e", "#6a2c91", "#b83280", "#d8553c", "#d67d00"),
    "dark": ("#4f6cff", "#927af2", "#e287be", "#ffad78", "#fff0a0"),
}
_ALGORITHMS = {
    "light": ("#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b07800", "#3a9bd9"),
    "dark": ("#f2f2f2", "#4ea8e6", "#ff8a3d", "#2fd0a2", "#eaa0cb", "#e8b62d", "#9ad4ff"),
}
_DASHES = ("solid", "dash", "dot", "dashdot")

_TO_LMS = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
_TO_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def class_colours(count: int, theme: str = "light") -> list[str]:
    """Colours of ``count`` classes from majority to minority, as #rrggbb.

    >>> class_colours(2)
    ['#15226e', '#d67d00']
    """
    anchors = np.array([_oklab(colour) for colour in _CLASS_ANCHORS[theme]])
    places = np.linspace(0, 1, len(anchors))
    mixed = [np.interp(np.linspace(0, 1, count), places, anchors[:, axis]) for axis in range(3)]
    return [_hex(colour) for colour in np.stack(mixed, axis=-1)]


@dataclass(frozen=True)
class Look:
    """How the line of an algorithm looks: its colour in every theme, and its dashes as plotly names them."""

    colours: dict[str, str]
    dash: str


def algorithm_looks(names: Sequence[str]) -> dict[str, Look]:
    """Give every algorithm a look of its own, the same wherever it appears.

    >>> [look.dash for look in algorithm_looks("abcdefgh").values()][-2:]
    ['solid', 'dash']
    """
    distinct = list(dict.fromkeys(names))
    hues = len(_ALGORITHMS["light"])
    return {
        name: Look({theme: _ALGORITHMS[theme][at % hues] for theme in THEMES}, _DASHES[at // hues % len(_DASHES)])
        for at, name in enumerate(distinct)
    }


def _oklab(colour: str) -> NDArray[np.float64]:
    """Give a colour in Oklab (Ottosson 2020), where equal distances look equal."""
    code = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    linear = np.where(code <= 0.04045, code / 12.92, ((code + 0.055) / 1.055) ** 2.4)
    lab: NDArray[np.float64] = _TO_LAB @ np.cbrt(_TO_LMS @ linear)
    return lab


def _hex(lab: NDArray[np.float64]) -> str:
    linear = np.clip(np.linalg.solve(_TO_LMS, np.linalg.solve(_TO_LAB, lab) ** 3), 0, 1)
    code = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return "#" + "".join(f"{round(255 * float(part)):02x}" for part in code)

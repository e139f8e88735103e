from __future__ import annotations

import itertools
import re
from importlib.resources import files

import numpy as np
import pytest

from classgrad.report._colours import THEMES, algorithm_looks, class_colours

# Machado, Oliveira and Fernandes (2009), severity 1: what people with each deficiency see, in linear RGB.
VISION = {
    "common": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}


def linear(colour):
    code = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(code <= 0.04045, code / 12.92, ((code + 0.055) / 1.055) ** 2.4)


def luminance(colour, vision=VISION["common"]):
    return float(np.clip(vision @ linear(colour), 0, 1) @ [0.2126, 0.7152, 0.0722])


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def page_colours():
    """The colours of the page: those of the light theme, then those that the dark theme replaces."""
    style = files("classgrad.report").joinpath("page", "style.css").read_text()
    found = re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", style)
    half = [name for name, _ in found].index("paper", 1)
    return {"light": dict(found[:half]), "dark": dict(found[half:])}


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("theme", THEMES)
def test_class_colours_get_lighter_all_the_way_for_every_eye(theme, vision):
    seen = [luminance(colour, VISION[vision]) for colour in class_colours(10, theme)]
    assert all(later > earlier for earlier, later in itertools.pairwise(seen))
    assert seen[-1] > 3 * seen[0]


@pytest.mark.parametrize("theme", THEMES)
def test_lines_stand_out_from_the_page(theme):
    paper = page_colours()[theme]["paper"]
    looks = algorithm_looks([str(k) for k in range(7)]).values()
    for colour in [*class_colours(10, theme), *(look.colours[theme] for look in looks)]:
        assert contrast(colour, paper) >= 2.9, colour


@pytest.mark.parametrize("theme", THEMES)
def test_text_is_readable(theme):
    colours = page_colours()[theme]
    pairs = [
        ("ink", "paper"),
        ("soft", "paper"),
        ("soft", "card"),
        ("accent", "paper"),
        ("warm", "warm-back"),
        ("cool", "cool-back"),
    ]
    for text, back in pairs:
        assert contrast(colours[text], colours[back]) >= 4.5, (text, back)


def test_any_number_of_classes():
    assert class_colours(1) == ["#15226e"]
    assert len(set(class_colours(100))) == 100


def test_algorithms_are_told_apart_and_keep_their_look():
    looks = algorithm_looks([f"a{k}" for k in range(20)] + ["a3"])
    assert len(looks) == 20
    assert len({(look.colours["light"], look.dash) for look in looks.values()}) == 20
    assert looks["a0"] == algorithm_looks(["a0"])["a0"]

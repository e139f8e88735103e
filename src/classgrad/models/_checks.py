"""Checks of the arguments that several networks share."""

import operator
from collections.abc import Collection

from classgrad._errors import InputError

VARIANTS = ("paper", "authors")


def whole(parameter: str, value: int, least: int = 1) -> int:
    """`value` as an int, if it is one and large enough."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least:
        raise InputError(f"{parameter} must be an integer of at least {least}; found {value!r}")
    return number


def height_and_width(image_size: int | tuple[int, int], least: int) -> tuple[int, int]:
    """Both sides of an image given as one number or two, each at least `least`."""
    sides = image_size if isinstance(image_size, tuple) else (image_size, image_size)
    if len(sides) != 2:
        raise InputError(f"image_size must be one number or (height, width); found {image_size!r}")
    return whole("image_size", sides[0], least), whole("image_size", sides[1], least)


def one_of(parameter: str, value: str, allowed: Collection[str]) -> str:
    """`value`, if it is one of `allowed`."""
    if value not in allowed:
        raise InputError(f"{parameter} must be one of {', '.join(sorted(allowed))}; found {value!r}")
    return value


def groups_of(channels_per_group: int, narrowest: int, positions: int) -> int:
    """`channels_per_group`, if layers of `narrowest` channels divide by it and every group holds several values.

    `positions` is the number of pixels of the smallest map that is normalized.
    """
    size = whole("channels_per_group", channels_per_group)
    if narrowest % size:
        raise InputError(f"channels_per_group must divide the {narrowest} channels of the first layer; found {size}")
    if size * positions == 1:
        raise InputError(
            "channels_per_group=1 leaves groups of a single value where the maps have shrunk to one pixel, and"
            " normalizing those erases them; use at least 2, or larger images"
        )
    return size

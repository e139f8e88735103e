"""Libraries of the ``lab`` extra, imported when they are first needed."""

from __future__ import annotations

import importlib
from types import ModuleType

from classgrad._errors import InputError


def lab_module(name: str, purpose: str) -> ModuleType:
    """Import ``name``, or say in one line what to install for ``purpose``."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise InputError(f"{purpose} needs the package {error.name}: pip install 'classgrad[lab]'") from error

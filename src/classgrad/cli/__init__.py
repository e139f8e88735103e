"""The ``classgrad`` command: one thin file a subcommand.

:func:`main` is what the installed command runs. It turns bad input into one line on standard error and exit code 2,
and an interrupt into exit code 130.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line with ``arguments`` (by default those of the process) and return its exit code."""
    try:
        from classgrad.cli._app import run
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        print(f"classgrad: the command needs the package {package}: pip install 'classgrad[lab]'", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # the imports take seconds
        return 130
    return run(arguments)

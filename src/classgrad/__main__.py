"""``python -m classgrad`` is the command too."""

import sys

from classgrad.cli import main

sys.exit(main())

"""The one place that writes to the screen; everything else is logging."""

from __future__ import annotations

import sys


def show(text: str) -> None:
    """Write ``text`` and a line end to standard output."""
    sys.stdout.write(text + "\n")

"""The one place that writes to the screen; everything else is logging."""

from __future__ import annotations

import sys

from qtune.report.processes import is_first_process


def show(text: str) -> None:
    """Write ``text`` and a line end to standard output, once: not in every process of several.

    Nothing where standard output is closed.
    """
    if sys.stdout is not None and is_first_process():
        sys.stdout.write(text + "\n")

"""Whether a run has all tests of the project, or somebody chose some of them."""

from __future__ import annotations

import pytest

OUTPUT = "qtune_deselected"
"""Key of xdist's ``workeroutput``."""
_CHOOSING = {
    "keyword": "-k",
    "markexpr": "-m",
    "lf": "--lf",
    "stepwise": "--sw",
    "deselect": "--deselect",
}


def reason(config: pytest.Config, deselected: int) -> str:
    """Why this run is partial, empty for a complete one.

    A folder or file on the command line is complete: it is what a gate job runs. ``deselected``:
    how many collected tests some plugin took away.
    """
    if any("::" in str(arg) for arg in config.args):
        return "partial run: single tests were named"
    for option, flag in _CHOOSING.items():
        if config.getoption(option, None):
            return f"partial run: {flag}"
    return f"partial run: {deselected} deselected" if deselected else ""

"""Settings of hypothesis for fuzzing: the profile ``qtune``. Needs the package hypothesis."""

from __future__ import annotations

from pathlib import Path

from qtune.errors import ArgumentError
from qtune.testing.baseline_file import in_ci

try:
    from hypothesis import HealthCheck, Phase, Verbosity, settings
    from hypothesis.database import DirectoryBasedExampleDatabase
except ImportError as error:
    raise ImportError(
        'fuzzing: the package hypothesis is not installed; pip install "qtune[fuzz]"'
    ) from error

NAME = "qtune"
EXAMPLES = 40
"""Examples per property. The run that CI repeats finds every fault of test_planted_faults.py; of
100 runs that draw others 0 to 3 missed a fault of rounding, saturation, axis or padding."""


def profile(examples: int | None = None, database: Path | None = None) -> settings:
    """The profile ``qtune``; registered under that name, never loaded.

    No deadline. ``database``: a folder for failing examples, which a later run tries first; with
    it, and outside of CI, each run draws other examples. In CI and without one all runs are equal.
    """
    if examples is not None and (not isinstance(examples, int) or examples < 1):
        raise ArgumentError(f"fuzzing: examples must be a whole number from 1, got {examples!r}")
    is_fixed = database is None or in_ci()
    settings.register_profile(
        NAME,
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=is_fixed,
        database=None if is_fixed else DirectoryBasedExampleDatabase(str(database)),
        phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        print_blob=False,
        verbosity=Verbosity.quiet,
    )
    found = settings.get_profile(NAME)
    return found if examples is None else settings(found, max_examples=examples)

from __future__ import annotations

from tests.surroundings import no_run_files

__all__ = ["no_run_files"]

from __future__ import annotations

from tests.surroundings import run_files_elsewhere

__all__ = ["run_files_elsewhere"]

"""Files that the user names: read with torch's safe default, or refused in one sentence."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch

from qtune.errors import AnalysisError


def load_safely(path: Path) -> Any:
    """The content of a file, with torch's safe default; ``AnalysisError`` if it can't be read."""
    try:
        return torch.load(path, weights_only=True, map_location="cpu")
    except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
        raise AnalysisError(f"{path} can't be read safely: {error}") from error

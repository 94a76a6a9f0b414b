"""Gate files, ``*.qtune.toml``: a model and what must hold for it, without a line of Python.

``read`` gives a ``GateFile`` and loads no torch; ``run.GateRun`` builds the model and checks it.
The pytest plugin and ``qtune gate`` are two ways to run the same thing.
"""

from __future__ import annotations

from qtune.testing.gatefile.error import GateFileError
from qtune.testing.gatefile.read import SUFFIX, read
from qtune.testing.gatefile.tables import Check, GateFile, ModelTable

__all__ = ["SUFFIX", "Check", "GateFile", "GateFileError", "ModelTable", "read"]

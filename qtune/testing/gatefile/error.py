"""The one error of gate files: file, line, what came, what was expected."""

from __future__ import annotations

from qtune.errors import QtuneError


class GateFileError(QtuneError, ValueError):
    """A gate file, or what it names, can't be used. The text begins with ``<file>:<line>:``."""

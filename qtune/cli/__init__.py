"""The command ``qtune``: the tools of this package for those who don't write Python."""

from qtune.cli.main import main

__all__ = ["main"]

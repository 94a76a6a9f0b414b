"""A bar of steps on standard error."""

from __future__ import annotations

import sys


class Progress:
    """``steps`` steps of ``task``; writes nothing unless ``shown``."""

    def __init__(self, task: str, steps: int, *, shown: bool) -> None:
        self.task = task
        self.steps = steps
        self.shown = shown
        self.done = 0

    def step(self, name: str) -> None:
        """Show that the step ``name`` begins (the last one: that all is done)."""
        self.done += 1
        if not self.shown:
            return
        bar = "#" * self.done + "." * (self.steps - self.done)
        sys.stderr.write(f"{self.task} [{bar}] {self.done}/{self.steps} {name}\n")
        sys.stderr.flush()

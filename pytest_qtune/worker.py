"""What an xdist worker tells the controller beside its reports."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_qtune import cache, partial, processes


class QtuneWorker:
    """A plugin object of a worker."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.deselected = 0

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Count what the controller does not see: it collects nothing."""
        self.deselected += len(items)

    def pytest_sessionfinish(self) -> None:
        """Send how many artefacts this worker built and read, its threads, what it left out."""
        output = getattr(self.config, "workeroutput", None)
        if output is not None:
            output[cache.OUTPUT] = cache.counts(self.config)
            output[processes.OUTPUT] = processes.facts(self.config)
            output[partial.OUTPUT] = self.deselected

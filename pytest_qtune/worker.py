"""What an xdist worker tells the controller beside its reports."""

from __future__ import annotations

import pytest

from pytest_qtune import cache


class QtuneWorker:
    """A plugin object of a worker."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    def pytest_sessionfinish(self) -> None:
        """Send how many artefacts this worker built and read."""
        output = getattr(self.config, "workeroutput", None)
        if output is not None:
            output[cache.OUTPUT] = cache.counts(self.config)

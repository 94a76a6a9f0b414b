"""What an xdist worker tells the controller beside its reports."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_qtune import cache, options, partial, processes

ERROR = "qtune_error"
"""Key of xdist's ``workeroutput``: a wrong use, which the controller reports."""


class QtuneWorker:
    """A plugin object of a worker."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.deselected = 0
        self.error = ""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave wrong arguments of markers to the controller, where they are no internal error."""
        try:
            options.check_markers(items)
        except pytest.UsageError as error:
            self.error = str(error)
            items.clear()

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Count what the controller does not see: it collects nothing."""
        self.deselected += len(items)

    def pytest_sessionfinish(self) -> None:
        """Send what the cache did, the threads, how many tests were left out, a wrong use."""
        output = getattr(self.config, "workeroutput", None)
        if output is not None:
            output[cache.OUTPUT] = cache.counts(self.config)
            output[processes.OUTPUT] = processes.facts(self.config)
            output[partial.OUTPUT] = self.deselected
            output[ERROR] = self.error

"""The processes of a run: which test ran where and how long, with how many torch threads."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import pytest

from pytest_qtune import threads

MAIN = "main"
"""Id of the process of a run without workers; workers have those of xdist, such as ``gw0``."""
OUTPUT = "qtune_process"
"""Key of xdist's ``workeroutput``."""


def facts(config: pytest.Config) -> dict[str, int | None]:
    """Torch threads of this process: what it is given, and what torch has (if it is loaded)."""
    torch: Any = sys.modules.get("torch")
    actual = None if torch is None else int(torch.get_num_threads())
    return {"threads": threads.per_process(config), "torch_threads": actual}


class Processes:
    """What happens where and when; all that two runs of the same suite may differ in."""

    def __init__(self) -> None:
        self.started = time.time()
        self._known: dict[str, dict[str, int | None]] = {}
        self._crashed: set[str] = set()
        self._seconds: dict[str, float] = {}
        self._homes: dict[str, str] = {}

    def add_report(self, nodeid: str, report: pytest.TestReport) -> None:
        """Count a phase's time for its test."""
        node: Any = getattr(report, "node", None)
        self._homes[nodeid] = MAIN if node is None else str(node.gateway.id)
        self._seconds[nodeid] = self._seconds.get(nodeid, 0.0) + float(
            getattr(report, "duration", 0.0)
        )

    def add_worker(self, node: Any, error: object) -> None:
        """Keep what a worker sent at its end; one that crashed sent nothing."""
        found = getattr(node, "workeroutput", {}).get(OUTPUT)
        self._known[str(node.gateway.id)] = found or {"threads": None, "torch_threads": None}
        if error:
            self._crashed.add(str(node.gateway.id))

    def data(self, config: pytest.Config, nodeids: Iterable[str]) -> dict[str, Any]:
        """The part of a run's data about time and processes; times in seconds."""
        known = dict(self._known)
        if threads.runs_tests(config):
            known[MAIN] = facts(config)
        return {
            "started": datetime.fromtimestamp(self.started, UTC).isoformat(timespec="seconds"),
            "seconds": round(time.time() - self.started, 3),
            "processes": [
                {"id": name, **values, "crashed": name in self._crashed}
                for name, values in sorted(known.items())
            ],
            "tests": [
                {"nodeid": n, "process": self._homes[n], "seconds": round(self._seconds[n], 3)}
                for n in sorted(set(nodeids) & set(self._homes))
            ],
        }

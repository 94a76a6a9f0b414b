"""The baselines of a whole run, on the controller: what its tests measured, and what passed.

What is written and which are unused is settled at the end (``baseline_end``), if there are any.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

from pytest_qtune import baselines, options

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

    from pytest_qtune.baseline_end import BaselineEnd
    from pytest_qtune.session import QtuneSession


class Attempt:
    """One attempt of a test: its rows by name, and how it went."""

    __slots__ = ("ended", "number", "passed", "rows", "skipped")

    def __init__(self, number: int = 1) -> None:
        self.number = number
        self.rows: dict[str, dict[str, Any]] = {}
        self.passed = True
        self.skipped = False
        self.ended = False


class BaselineRun:
    """A plugin object of the controller (or of a run without workers)."""

    def __init__(
        self, config: pytest.Config, session: QtuneSession, local: baselines.QtuneBaselines
    ) -> None:
        self.config = config
        self.session = session
        self.collected: baselines.Collected = local.collected
        self.files: list[str] = local.files
        self.update: str | None = options.get(config, "update")
        self.tests: dict[str, Attempt] = {}
        self.interrupted = False
        self.end: BaselineEnd | None = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect what a test left on its report, and whether it passed."""
        if not isinstance(report, pytest.TestReport):
            return
        nodeid = getattr(report, "qtune_id", report.nodeid)
        attempt = getattr(report, "qtune_attempt", 1)
        test = self.tests.get(nodeid)
        if test is None or attempt > test.number:  # the last attempt counts
            test = self.tests[nodeid] = Attempt(attempt)
        for item in getattr(report, "qtune_baselines", ()):  # --dist=each sends them twice
            test.rows[item["row"]["name"]] = item
        test.passed &= report.passed and not hasattr(report, "wasxfail")
        test.skipped |= report.skipped and report.when == "setup"
        test.ended |= report.when == "teardown"

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Ctrl-C and ``pytest.exit``; ``-x`` comes as one of two classes called Interrupted."""
        self.interrupted = excinfo.typename != "Interrupted"

    def pytest_internalerror(self) -> None:
        """Whatever a broken run measured is not to be kept."""
        self.interrupted = True

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """All workers collect the same tests; a crashed one says nothing."""
        output = getattr(node, "workeroutput", {})
        self.collected = output.get(baselines.OUTPUT, self.collected)
        self.files = output.get(baselines.FILES_OUTPUT, self.files)

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # before any report is written
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, Any, Any]:
        """Write, once; list the unused."""
        asked = any(test.rows for test in self.tests.values())
        if self.update is not None or self.collected or self.files or asked:
            from pytest_qtune.baseline_end import BaselineEnd

            self.end = BaselineEnd(self)
            self.end.settle()
            if self.end.error and session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
        return (yield)

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        """Say what was written, and what is unused."""
        if self.end is not None:
            self.end.show(terminalreporter)

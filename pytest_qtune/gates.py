"""Gates as test reports: judged on the controller after the last test, before reports are written.

Registered only where gates are set and ``--qtune`` is given.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from pytest_qtune import gate_baselines, gate_values, options, partial
from pytest_qtune.gate_expression import BASELINE, Gate
from pytest_qtune.gate_values import FAILED, PASSED, PREFIX, SKIPPED, Entry

if TYPE_CHECKING:
    from _pytest._io import TerminalWriter

    from pytest_qtune.session import QtuneSession

_SILENT = ("session", "lfplugin", "stepwiseplugin")
"""Plugins that must not see a gate's report: it is no test that could run again (``--lf``,
``--sw``), and it comes too late to stop the run (``-x``)."""
_WORDS: dict[str, dict[str, bool]] = {
    PASSED: {"green": True}, FAILED: {"red": True}, SKIPPED: {"yellow": True},
}  # fmt: skip


class GateFailure:
    """What a failed gate's report carries where a test's has its traceback."""

    def __init__(self, message: str, source: str) -> None:
        self.reprcrash = _Crash(message, source)

    def __str__(self) -> str:
        return self.reprcrash.message

    def toterminal(self, writer: TerminalWriter) -> None:
        """Called by pytest's terminal and by pytest-html."""
        for line in str(self).split("; "):
            writer.line(f"E   {line}", red=True, bold=True)


class _Crash:
    """As pytest's own ``reprcrash``: short summary and JUnit read ``message``."""

    def __init__(self, message: str, source: str) -> None:
        self.path, self.lineno, self.message = source, 0, message

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


class QtuneGates:
    """A plugin object of the controller (or of a run without workers)."""

    def __init__(self, config: pytest.Config, session: QtuneSession) -> None:
        self.config = config
        self.run = session
        self.gates: Sequence[Gate] = options.get(config, "gates")
        self.quiet = False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, Any, Any]:
        """Judge when all tests have run, or as many as ``-x`` and the like let run."""
        try:
            result = yield
        except (KeyboardInterrupt, session.Failed, pytest.exit.Exception) as stop:
            self._conclude(session, f"the run stopped early: {str(stop) or 'interrupted'}")
            raise
        if not _runs_nothing(self.config):
            self._conclude(session, "")
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """While they are logged: counted, but no letter in the line of progress."""
        if self.quiet and hasattr(report, "qtune_gate") and report.when == "call":
            return report.outcome, "", ""
        return None

    def _conclude(self, session: pytest.Session, stopped: str) -> None:
        reason = stopped or partial.reason(self.config, self.run.deselected)
        for entry in self._judged(reason):
            session.testsfailed += entry["outcome"] == FAILED
            self._log(entry)

    def _judged(self, reason: str) -> list[Entry]:
        """The outcome of every gate for each of its models; ``reason``: why the run is partial."""
        found = gate_values.numbers(self.run.tests)
        failed = {str(test["nodeid"]) for test in self.run.tests if test["outcome"] == "failed"}
        failed |= {test["nodeid"] for test in self.run.others}
        stored = gate_baselines.Stored(self.config, reason, failed)
        entries = []
        for gate in self.gates:
            judge = stored.judge if gate.relation == BASELINE else gate_values.judge
            models: list[str | None] = [*gate_values.models_of(gate, found)]
            for model in models or [None]:
                value = None if model is None else gate_values.select(gate, found[model])
                if model is None or value is None:
                    crashed = bool(self.run.crashed)
                    entries.append(gate_values.missing(gate, model, found, reason, crashed=crashed))
                else:
                    entries.append(judge(gate, model, value))
        entries = stored.save(entries)
        self.run.baselines += stored.rows.values()
        return gate_values.complete(entries)

    def _log(self, entry: Entry) -> None:
        manager = self.config.pluginmanager
        known = [plugin for name in _SILENT if (plugin := manager.get_plugin(name)) is not None]
        log = manager.subset_hook_caller("pytest_runtest_logreport", remove_plugins=known)
        self.quiet = True
        try:
            for report in self._reports(entry):
                log(report=report)
        finally:
            self.quiet = False
        terminal = manager.get_plugin("terminalreporter")
        if terminal is not None and self.config.getoption("verbose") > 0:
            terminal.ensure_newline()
            terminal.write_line(
                f"{entry['nodeid']} {entry['outcome'].upper()}", **_WORDS[entry["outcome"]]
            )

    def _reports(self, entry: Entry) -> Iterable[Any]:
        """The three phases that a test has: JUnit and pytest-html wait for the last one."""
        source = str(self.config.inipath or self.config.rootpath)
        longrepr: Any = None
        outcome: Any = entry["outcome"]
        if entry["outcome"] == FAILED:
            longrepr = GateFailure(entry["message"], source)
        elif entry["outcome"] == SKIPPED:
            longrepr = (source, 1, f"Skipped: {entry['message']}")
        for when in ("setup", "call", "teardown"):
            decides = when == "call"
            report: Any = pytest.TestReport(
                nodeid=entry["nodeid"],
                location=(PREFIX, None, entry["nodeid"]),
                keywords={},
                outcome=outcome if decides else "passed",
                longrepr=longrepr if decides else None,
                when=when,
                user_properties=self._properties(entry),
            )
            report.qtune_gate = entry
            yield report

    def _properties(self, entry: Entry) -> list[tuple[str, object]]:
        from pytest_qtune import junit

        return junit.gate_properties(entry) if junit.on_testcase(self.config) else []


def _runs_nothing(config: pytest.Config) -> bool:
    """``--collect-only``, ``--setup-only`` and ``--setup-plan`` run no test."""
    return any(config.getoption(name, False) for name in ("collectonly", "setuponly", "setupplan"))

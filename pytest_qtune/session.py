"""What the controlling process knows about a run: results, crashed workers, the reports.

Modules that only a run with results or reports needs are imported where it needs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest

from pytest_qtune import junit, options, partial, processes, reports, rerun, threads

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

SCHEMA = 2


class QtuneSession:
    """A plugin object of the controller (or of a run without workers)."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.active = bool(config.getoption("qtune"))
        self.tests: list[dict[str, Any]] = []
        self._attempts: dict[str, int] = {}
        self.others: list[dict[str, str]] = []
        self.crashed: list[str] = []
        self.artefacts: dict[str, int] = {}
        self.gates: list[dict[str, Any]] = []
        self.baselines: list[dict[str, Any]] = []
        self.processes = processes.Processes()
        self.deselected = 0
        self.unwritten = ""
        reports.check(config)

    def pytest_report_header(self) -> str | None:
        """One line about march and threads, with ``--qtune`` only."""
        if not self.active:
            return None
        march = options.get(self.config, "march") or "set by the tests"
        return (
            f"qtune: march {march}, {threads.per_process(self.config)} torch thread(s) per process"
        )

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Refuse wrong arguments of the markers before anything runs."""
        options.check_markers(items)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect what a test left on its report."""
        if hasattr(report, "qtune_gate"):
            self._add_gate(report)
            return
        results = getattr(report, "qtune", None)
        nodeid = getattr(report, "qtune_id", report.nodeid)
        self._forget_earlier_attempts(nodeid, getattr(report, "qtune_attempt", 1))
        self.processes.add_report(nodeid, report)
        if report.failed and (results is None or (results and all(r["ok"] for r in results))):
            self.others.append({"nodeid": nodeid, "error": _error(report)})
        if results is None:
            return
        entry = {
            "nodeid": nodeid,
            "when": report.when,
            "outcome": report.outcome,
            "error": _error(report),
            "rerun": getattr(report, "qtune_rerun", ""),
            "results": results,
        }
        if hasattr(report, "wasxfail"):
            entry["outcome"] = "xfailed" if report.skipped else "xpassed"
        self.tests.append(entry)

    def _add_gate(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self.gates.append(report.qtune_gate)

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Count what ``-k`` and other plugins leave out: it decides whether a run is complete."""
        self.deselected += len(items)

    def _forget_earlier_attempts(self, nodeid: str, attempt: int) -> None:
        """A test that is run again (pytest-rerunfailures) counts by its last attempt."""
        if attempt > self._attempts.get(nodeid, 1):
            self._attempts[nodeid] = attempt
            self.tests = [test for test in self.tests if test["nodeid"] != nodeid]
            self.others = [test for test in self.others if test["nodeid"] != nodeid]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that can't be collected is a failure of the run too."""
        if report.failed:
            self.others.append({"nodeid": report.nodeid, "error": _error(report)})

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a new worker how this run was called."""
        node.workerinput[rerun.WORKERINPUT] = rerun.flags(self.config)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Add up the cache counts; list a crashed worker, the rest of the run still counts."""
        from pytest_qtune import cache
        from pytest_qtune.worker import ERROR

        output = getattr(node, "workeroutput", {})
        if output.get(ERROR):
            raise pytest.UsageError(output[ERROR])
        cache.add(self.artefacts, output.get(cache.OUTPUT, {}))
        self.deselected = max(self.deselected, output.get(partial.OUTPUT, 0))  # each sees all
        self.processes.add_worker(node, error)
        if error:
            self.crashed.append(f"{node.gateway.id}: {error}")

    @pytest.hookimpl(tryfirst=True)  # before the JUnit file is written
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Complete the run's data, and write them wherever they were asked for."""
        if self.config.stash.get(junit.XML, None) is not None:
            junit.add_to_suite(self.config, self.data(), everywhere=self.active)
        paths = reports.paths(self.config)
        if not (self.active or paths):
            return
        from pytest_qtune import cache

        cache.add(self.artefacts, cache.counts(self.config))
        try:
            if paths:
                reports.write(paths, self.data())
        except OSError as error:  # a full disk must not cost the terminal's report
            self.unwritten = str(error)
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        """One table per model."""
        if self.active and (self.tests or self.crashed or self.gates):
            from pytest_qtune import terminal

            terminal.write(terminalreporter, self.data())
        if self.unwritten:
            terminalreporter.write_line(f"qtune: no report written: {self.unwritten}", red=True)
        elif self.config.getoption("verbose") >= 0:
            for name, path in reports.paths(self.config).items():
                terminalreporter.write_line(f"qtune: {name} report written to {path}")

    def data(self) -> dict[str, Any]:
        """The run as plain containers: the source of JSON, HTML and the terminal table."""
        from pytest_qtune import summary

        return {
            "schema": SCHEMA,
            "qtune": _version(),
            "run": self.processes.data(self.config, (str(t["nodeid"]) for t in self.tests)),
            "tests": sorted(self.tests, key=lambda t: str(t["nodeid"])),
            "gates": self.gates,
            "baselines": self.baselines,
            "totals": self._totals(),
            "other_failures": sorted(self.others, key=lambda t: t["nodeid"]),
            "crashed_workers": self.crashed,
            "artefacts": self.artefacts,
            "settings": {
                "march": options.get(self.config, "march") or summary.marches(self.tests),
                "threads": threads.per_process(self.config),
            },
        }

    def _totals(self) -> dict[str, int]:
        from pytest_qtune import summary

        return summary.totals(self.tests, self.gates) | {"other_failures": len(self.others)}


def _version() -> str:
    """The installed version; qtune itself may not be loaded in this process."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("qtune")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return ""


def _error(report: pytest.TestReport | pytest.CollectReport) -> str:
    """The first line of what a test failed with; with the next one where it announces a list."""
    from pytest_qtune.plain import plain_text

    crash = getattr(report.longrepr, "reprcrash", None)
    message = str(getattr(crash, "message", "") or report.longrepr or "")
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    if not report.failed or not lines:
        return ""
    if crash is None:  # an error of collection is a text that ends with the reason
        lines = lines[-1:]
    return plain_text(" ".join(lines[: 2 if lines[0].endswith(":") else 1]))

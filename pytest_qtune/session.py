"""What the controlling process knows about a run: results, crashed workers, the reports.

Modules that only a run with results or reports needs are imported where it needs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_qtune import junit, options, reports, rerun, threads

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

SCHEMA = 2


class QtuneSession:
    """A plugin object of the controller (or of a run without workers)."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.active = bool(config.getoption("qtune"))
        self.tests: list[dict[str, Any]] = []
        self.others: list[dict[str, str]] = []
        self.crashed: list[str] = []
        self.artefacts: dict[str, int] = {}
        self.gates: list[dict[str, Any]] = []
        self.baselines: list[dict[str, Any]] = []

    def pytest_report_header(self) -> str | None:
        """One line about march and threads, with ``--qtune`` only."""
        if not self.active:
            return None
        march = options.get(self.config, "march") or "set by the tests"
        return (
            f"qtune: march {march}, {threads.per_process(self.config)} torch thread(s) per process"
        )

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect what a test left on its report."""
        results = getattr(report, "qtune", None)
        if report.failed and (results is None or (results and all(r["ok"] for r in results))):
            self.others.append({"nodeid": report.nodeid, "error": _error(report)})
        if results is None:
            return
        entry = {
            "nodeid": report.nodeid,
            "when": report.when,
            "outcome": report.outcome,
            "error": _error(report),
            "results": results,
        }
        if hasattr(report, "wasxfail"):
            entry["outcome"] = "xfailed" if report.skipped else "xpassed"
        self.tests.append(entry)

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

        cache.add(self.artefacts, getattr(node, "workeroutput", {}).get(cache.OUTPUT, {}))
        if error:
            self.crashed.append(f"{node.gateway.id}: {error}")

    @pytest.hookimpl(tryfirst=True)  # before the JUnit file is written
    def pytest_sessionfinish(self) -> None:
        """Complete the run's data, and write them wherever they were asked for."""
        if self.config.stash.get(junit.XML, None) is not None:
            junit.add_to_suite(self.config, self.data(), everywhere=self.active)
        paths = reports.paths(self.config)
        if not (self.active or paths):
            return
        from pytest_qtune import cache

        cache.add(self.artefacts, cache.counts(self.config))
        if paths:
            reports.write(paths, self.data())

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        """One table per model."""
        if self.active and (self.tests or self.crashed):
            from pytest_qtune import terminal

            terminal.write(terminalreporter, self.data())
        if self.config.getoption("verbose") >= 0:
            for name, path in reports.paths(self.config).items():
                terminalreporter.write_line(f"qtune: {name} report written to {path}")

    def data(self) -> dict[str, Any]:
        """The run as plain containers: the source of JSON, HTML and the terminal table."""
        from pytest_qtune import summary

        return {
            "schema": SCHEMA,
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

        return summary.totals(self.tests) | {"other_failures": len(self.others)}


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

"""What the controlling process knows about a run: results, crashed workers, the reports.

Modules that only a run with results or reports needs are imported where it needs them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_qtune import options, rerun

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

SCHEMA = 1


class QtuneSession:
    """A plugin object of the controller (or of a run without workers)."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.active = bool(config.getoption("qtune"))
        self.tests: list[dict[str, Any]] = []
        self.others: list[dict[str, str]] = []
        self.crashed: list[str] = []
        self.artefacts: dict[str, int] = {}

    def pytest_report_header(self) -> str | None:
        """One line about march and threads, with ``--qtune`` only."""
        if not self.active:
            return None
        march = options.get(self.config, "march") or "set by the tests"
        return f"qtune: march {march}, {options.threads(self.config)} torch thread(s) per process"

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
        """Write the JSON and the page, and the suite's JUnit properties."""
        self._junit_suite()
        json_path, html_path = (self._path(name) for name in ("json", "html"))
        if not (self.active or json_path or html_path):
            return
        from pytest_qtune import cache

        cache.add(self.artefacts, cache.counts(self.config))
        if json_path or html_path:
            self._write(json_path, html_path)

    def _write(self, json_path: Path | None, html_path: Path | None) -> None:
        from qtune.report.files import write_text

        data = self.plain_data()
        if json_path:
            write_text(json_path, json.dumps(data, indent=1, sort_keys=True, allow_nan=False))
        if html_path:
            from qtune.report.run_page import run_page

            write_text(html_path, run_page(data))

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        """One table per model."""
        if self.active and (self.tests or self.crashed):
            from pytest_qtune import terminal

            terminal.write(terminalreporter, self.data())
        for name in ("html", "json"):
            path = self._path(name)
            if path and self.config.getoption("verbose") >= 0:
                terminalreporter.write_line(f"qtune: {name} report written to {path}")

    def data(self) -> dict[str, Any]:
        """The run as plain containers: the source of JSON, HTML and the terminal table."""
        from pytest_qtune import summary

        return {
            "schema": SCHEMA,
            "tests": sorted(self.tests, key=lambda t: str(t["nodeid"])),
            "totals": self._totals(),
            "other_failures": sorted(self.others, key=lambda t: t["nodeid"]),
            "crashed_workers": self.crashed,
            "artefacts": self.artefacts,
            "settings": {
                "march": options.get(self.config, "march") or summary.marches(self.tests),
                "threads": options.threads(self.config),
            },
        }

    def _totals(self) -> dict[str, int]:
        from pytest_qtune import summary

        return summary.totals(self.tests) | {"other_failures": len(self.others)}

    def plain_data(self) -> dict[str, Any]:
        """``data()`` with NaN and infinities as strings, for JSON."""
        from pytest_qtune.plain import json_ready

        ready = json_ready(self.data())
        return ready if isinstance(ready, dict) else {}

    def _path(self, name: str) -> Path | None:
        """Where a report goes; relative to where pytest was called, wherever tests went since."""
        path = options.get(self.config, name)
        return self.config.invocation_params.dir / path if path else None

    def _junit_suite(self) -> None:
        """Run data on the suite with ``--qtune``; every metric with ``qtune_junit = suite``."""
        from _pytest.junitxml import xml_key

        xml = self.config.stash.get(xml_key, None)
        mode = options.get(self.config, "junit")
        if xml is None or mode == "none":
            return
        from pytest_qtune import summary

        if self.active:
            facts = {**self._totals(), **self.data()["settings"]}
            for name, value in facts.items():
                xml.add_global_property(f"qtune.{name}", value)
        for _, result in summary.pairs(self.tests if mode == "suite" else ()):
            for key, value in result["metrics"].items():
                xml.add_global_property(f"qtune.{result['model']}.{result['check']}.{key}", value)


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

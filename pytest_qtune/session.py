"""What the controlling process knows about a run: results, crashed workers, the reports."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from pytest_qtune import options, terminal
from pytest_qtune.plain import json_ready

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

SCHEMA = 1


class QtuneSession:
    """A plugin object of the controller (or of a run without workers)."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.active = bool(config.getoption("qtune"))
        self.tests: list[dict[str, Any]] = []
        self.crashed: list[str] = []

    def pytest_report_header(self) -> str | None:
        """One line about march and threads, with ``--qtune`` only."""
        if not self.active:
            return None
        march = options.get(self.config, "march") or "set by the tests"
        return f"qtune: march {march}, {options.threads(self.config)} torch thread(s) per process"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect what a test left on its report."""
        results = getattr(report, "qtune", None)
        if results:
            entry = {"nodeid": report.nodeid, "outcome": report.outcome, "results": results}
            if hasattr(report, "wasxfail"):
                entry["outcome"] = "xfailed" if report.skipped else "xpassed"
            self.tests.append(entry)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """List a crashed worker; the rest of the run still counts."""
        if error:
            self.crashed.append(f"{node.gateway.id}: {error}")

    @pytest.hookimpl(tryfirst=True)  # before the JUnit file is written
    def pytest_sessionfinish(self) -> None:
        """Write the JSON and the page, and the suite's JUnit properties."""
        if options.get(self.config, "junit") == "suite":
            self._junit_suite()
        json_path, html_path = (options.get(self.config, name) for name in ("json", "html"))
        data = self.plain_data() if json_path or html_path else None
        if data is None:
            return
        from qtune.report.files import write_text

        if json_path:
            write_text(json_path, json.dumps(data, indent=1, sort_keys=True, allow_nan=False))
        if html_path:
            from qtune.report.run_page import run_page

            write_text(html_path, run_page(data))

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        """One table per model."""
        if self.active and (self.tests or self.crashed):
            terminal.write(terminalreporter, self.data())
        for name in ("html", "json"):
            path = options.get(self.config, name)
            if path:
                terminalreporter.write_line(f"qtune: {name} report written to {path}")

    def data(self) -> dict[str, Any]:
        """The run as plain containers: the source of JSON, HTML and the terminal table."""
        return {
            "schema": SCHEMA,
            "tests": sorted(self.tests, key=lambda t: str(t["nodeid"])),
            "crashed_workers": self.crashed,
            "settings": {
                "march": options.get(self.config, "march"),
                "threads": options.threads(self.config),
            },
        }

    def plain_data(self) -> dict[str, Any]:
        """``data()`` with NaN and infinities as strings, for JSON."""
        ready = json_ready(self.data())
        return ready if isinstance(ready, dict) else {}

    def _junit_suite(self) -> None:
        from _pytest.junitxml import xml_key

        xml = self.config.stash.get(xml_key, None)
        if xml is None:
            return
        for test in self.tests:
            for result in test["results"]:
                for key, value in result["metrics"].items():
                    xml.add_global_property(
                        f"qtune.{result['model']}.{result['check']}.{key}", value
                    )

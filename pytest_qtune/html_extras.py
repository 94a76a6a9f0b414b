"""qtune in the page of pytest-html: a column, and the worst layers of a failed check.

Registered only where pytest-html writes a page. What qtune renders is rendered on the controller,
from the results on the reports, so workers send nothing more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import pytest

from pytest_qtune import summary
from pytest_qtune.plain import json_ready

PLACE = 2
"""The column stands behind ``Result`` and ``Test``."""
WORST = 5
MOST_PICTURES = 200
"""Later failed checks have their worst layers only: pytest-html's page has no limit of its own."""
_HEAD = '<th class="sortable" data-column-type="qtune">qtune</th>'


class QtuneHtml:
    """A plugin object of the process that writes the page; the column comes with ``--qtune``."""

    def __init__(self, config: pytest.Config) -> None:
        self.column = bool(config.getoption("qtune"))
        self._made: Any = config.pluginmanager.getplugin("html")
        self._pictures = 0

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_results_table_header(self, cells: list[str]) -> None:
        """Add the head of the column."""
        if self.column:
            cells.insert(PLACE, _HEAD)

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_results_table_row(self, report: Any, cells: list[str]) -> None:
        """Add the worst check of a test; a row that another plugin emptied stays empty."""
        if self.column and cells:
            cells.insert(PLACE, f'<td class="col-qtune">{escape(_cell(report))}</td>')

    @pytest.hookimpl(tryfirst=True)  # before pytest-html takes the report
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Put the failed checks of a test below its row."""
        found = [pair for pair in _judged(report, json_ready) if pair[0] != summary.OK]
        if found and _takes_extras(report.nodeid):
            given: list[Any] = list(getattr(report, "extras", ()))
            drawn = self._pictures < MOST_PICTURES
            self._pictures += len(found)
            parts = [self._made.extras.html(_part(report, *pair, drawn=drawn)) for pair in found]
            vars(report)["extras"] = [*given, *parts]


def _judged(report: Any, ready: Any) -> list[tuple[str, Mapping[str, Any]]]:
    """(mark, result) of every check of a phase, worst first."""
    results: Sequence[Any] = getattr(report, "qtune", None) or ()
    test = {"outcome": report.outcome}
    found = [(summary.mark(test, result), ready(result)) for result in results]
    return sorted(found, key=lambda pair: summary.rank(*pair))


def _cell(report: Any) -> str:
    """``FAIL consistency: COSINE 0.6, limit >= 0.98``, and how many checks there are more."""
    gate: Mapping[str, Any] | None = getattr(report, "qtune_gate", None)
    if gate is not None:
        from qtune.report.run_page_values import number

        got = number(json_ready(gate["value"])) or "not measured"
        return " ".join(f"{gate['outcome']}: {got}, limit {gate['limit']}".split())
    found = _judged(report, dict)
    if not found:
        return ""
    mark, worst = found[0]
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    text = f"{mark} {worst['check']}: {worst['got']}, limit {worst['limit']}{more}"
    return " ".join(text.split())


def _part(report: Any, mark: str, result: Mapping[str, Any], *, drawn: bool) -> str:
    """The check as on qtune's own page, in short."""
    from qtune.report.page import fragment
    from qtune.report.run_page_check import check_section
    from qtune.report.run_page_values import check_entry

    test = {"nodeid": report.nodeid, "rerun": getattr(report, "qtune_rerun", "")}
    section = check_section(check_entry(test, result, mark), rows=WORST, drawn=drawn)
    return str(fragment(section, 3))


def _takes_extras(nodeid: str) -> bool:
    """Whether pytest-html can name a file after the test: it reads escapes in the id."""
    try:
        nodeid.encode().decode("unicode_escape")
    except UnicodeDecodeError:
        return False
    return True

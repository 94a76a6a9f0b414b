"""pytest-html's page: a column with qtune's worst check, the worst layers below a failed test."""

from __future__ import annotations

import importlib
import json
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pytest_html")


class Blob(HTMLParser):
    """Finds the data that pytest-html's script shows, and the heads of its table."""

    def __init__(self) -> None:
        super().__init__()
        self.data: dict[str, Any] = {}
        self.heads: list[str] = []
        self._in_head = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if "data-jsonblob" in found:
            self.data = json.loads(found["data-jsonblob"] or "")
        self._in_head = tag == "th"

    def handle_data(self, data: str) -> None:
        if self._in_head and data.strip():
            self.heads.append(data.strip())

    def rows(self) -> dict[str, list[str]]:
        """The cells of each test."""
        return {name: found[0]["resultsTableRow"] for name, found in self.data["tests"].items()}

    def extras(self, name: str) -> list[str]:
        """The HTML below a test's row."""
        return [
            extra["content"]
            for extra in self.data["tests"][name][0]["extras"]
            if extra["format_type"] == "html"
        ]


def blob(path: Path) -> Blob:
    found = Blob()
    found.feed(path.read_text())
    return found


@pytest.fixture(autouse=True)
def with_pytest_html(without_other_plugins: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest")


@pytest.mark.parametrize("workers", ["0", "2"])
def test_column_and_worst_layers(project: pytest.Pytester, workers: str) -> None:
    result = project.runpytest(
        "--qtune", "-n", workers, "--html=out/p.html", "--self-contained-html"
    )
    result.assert_outcomes(passed=2, failed=1)
    page = blob(project.path / "out/p.html")
    assert page.heads[:4] == ["Result", "Test", "qtune", "Duration"]
    cells = {name: row[2] for name, row in page.rows().items()}
    assert cells == {
        "test_net.py::test_bad": (
            '<td class="col-qtune">FAIL consistency: 0.5, limit &lt;= 0.3</td>'
        ),
        "test_net.py::test_good": '<td class="col-qtune">ok consistency: 0.2, limit &lt;= 0.3</td>',
        "test_net.py::test_without_qtune": '<td class="col-qtune"></td>',
    }
    (extra,) = page.extras("test_net.py::test_bad")
    for text in ("<svg", "Raise head to qint16.", "The worst 3 of 3 layers", "<td>qint8</td>"):
        assert text in extra
    assert "pytest --qtune" in extra
    assert page.extras("test_net.py::test_good") == []


def test_worst_check_of_several_stands_in_the_column(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from qtune.testing.record import conclude_all
        from qtune.testing.result import AssertionResult

        def test_two():
            conclude_all([
                AssertionResult("fine", "m", True, "", "1", "2"),
                AssertionResult("<bad>", "m", False, "", "line\\nline", "2"),
            ])
        """
    )
    pytester.runpytest("--qtune", "--html=p.html", "--self-contained-html")
    (row,) = blob(pytester.path / "p.html").rows().values()
    text = "FAIL &lt;bad&gt;: line line, limit 2 (and 1 more)"
    assert row[2] == f'<td class="col-qtune">{text}</td>'


def test_without_the_flag_there_is_no_column_but_failures_are_shown(
    project: pytest.Pytester,
) -> None:
    project.runpytest("--html=p.html", "--self-contained-html")
    page = blob(project.path / "p.html")
    assert "qtune" not in page.heads
    assert all(len(row) == 4 for row in page.rows().values())
    assert len(page.extras("test_net.py::test_bad")) == 1


def test_rows_that_another_plugin_hides_stay_hidden(project: pytest.Pytester) -> None:
    project.makeconftest(
        """
        import pytest

        @pytest.hookimpl(tryfirst=True)
        def pytest_html_results_table_row(report, cells):
            if report.passed:
                del cells[:]
        """
    )
    project.runpytest("--qtune", "--html=p.html", "--self-contained-html")
    assert list(blob(project.path / "p.html").rows()) == ["test_net.py::test_bad"]


def test_own_extras_of_a_test_stay_first(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from pytest_html import extras as made
        from qtune.testing.record import conclude
        from qtune.testing.result import AssertionResult

        def test_it(extras):
            extras.append(made.html("<i>mine</i>"))
            conclude(AssertionResult("c", "m", False, "", "1", "2"))
        """
    )
    pytester.runpytest("--html=p.html", "--self-contained-html")
    first, second = blob(pytester.path / "p.html").extras(
        "test_own_extras_of_a_test_stay_first.py::test_it"
    )
    assert first == "<i>mine</i>"
    assert "c: got 1, limit 2" in second


def test_id_that_pytest_html_cannot_take_is_left_alone(pytester: pytest.Pytester) -> None:
    """pytest-html reads escapes in an id only where a test has extras: it would end the run."""
    pytester.makeconftest(
        r"""
        import pytest

        class Item(pytest.Item):
            def runtest(self):
                from qtune.testing.record import conclude
                from qtune.testing.result import AssertionResult
                conclude(AssertionResult("c", "m", False, "", "1", "2"))

        class File(pytest.File):
            def collect(self):
                yield Item.from_parent(self, name="layer\\x")

        def pytest_collect_file(file_path, parent):
            if file_path.suffix == ".odd":
                return File.from_parent(parent, path=file_path)
        """
    )
    pytester.makefile(".odd", a="")
    result = pytester.runpytest("--qtune", "--html=p.html", "--self-contained-html")
    result.assert_outcomes(failed=1)
    (row,) = blob(pytester.path / "p.html").rows().values()
    assert "FAIL c: 1, limit 2" in row[2]


@pytest.mark.parametrize("flags", [("-p", "no:html"), ()], ids=["off", "no page"])
def test_without_a_page_of_pytest_html_nothing_of_it_is_loaded(
    project: pytest.Pytester, flags: tuple[str, ...]
) -> None:
    project.makeconftest(
        """
        import sys

        def pytest_unconfigure(config):
            assert not config.pluginmanager.hasplugin("qtune-html")
            print("pytest_qtune.html_extras" in sys.modules)
        """
    )
    sys.modules.pop("pytest_qtune.html_extras", None)
    result = project.runpytest("--qtune", "-p", "no:xdist", *flags)
    result.assert_outcomes(passed=2, failed=1)
    assert "False" in result.outlines


def test_gates_have_rows_of_their_own(project: pytest.Pytester) -> None:
    gates = ("--qtune-gates=atol <= 0.4", "--qtune-gates=other == 0")
    project.runpytest("--qtune", *gates, "--html=p.html", "--self-contained-html")
    rows = blob(project.path / "p.html").rows()
    cells = {name: row[2] for name, row in rows.items() if name.startswith("qtune-gate::")}
    assert cells == {
        "qtune-gate::net[atol]": '<td class="col-qtune">failed: 0.5, limit &lt;= 0.4</td>',
        "qtune-gate::*[other]": '<td class="col-qtune">failed: not measured, limit == 0</td>',
    }


def test_pictures_are_counted(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("pytest_qtune.html_extras")  # the one that the run will see
    monkeypatch.setattr(module, "MOST_PICTURES", 1)
    project.makepyfile(
        test_net="""
        import pytest
        from checks import check

        @pytest.mark.parametrize("i", [0, 1])
        def test_bad(i):
            check(False)
        """
    )
    project.runpytest("--html=p.html", "--self-contained-html", "-p", "no:randomly")
    page = blob(project.path / "p.html")
    parts = [page.extras(f"test_net.py::test_bad[{i}]")[0] for i in (0, 1)]
    assert ["<svg" in part for part in parts] == [True, False]
    assert all("The worst 3 of 3 layers" in part for part in parts)

"""A page stays below its size, whatever the run; what it leaves out, it says."""

from __future__ import annotations

import re

import pytest

from qtune.report.page import Section
from qtune.report.run_page_budget import PAGE_BYTES, Budget, Variant

from .runs import entry_of, gate, large_run, render, result, run
from .test_page import checked

FAILED = '<span class="badge fail">FAIL</span> Consistency'


def note(html: str) -> str:
    found = re.search(r'<p class="note">(.*?)</p>', html)
    return found[1] if found else ""


def test_ordinary_run_is_shown_whole() -> None:
    html = render(large_run(3, 4, 82, 1))
    assert note(html) == ""
    assert html.count("<svg") == 3 * 4 + 3
    assert "rows; the JSON has all" not in html


@pytest.mark.parametrize("failing", [4, 40])
def test_fifty_models_of_forty_tests_and_300_layers_stay_below_the_limit(failing: int) -> None:
    html = render(large_run(50, 40, 300, failing))
    assert 0.9 * PAGE_BYTES < len(html.encode()) < PAGE_BYTES == 5_000_000
    assert "To stay below 5 MB, this page leaves out" in note(html)
    assert html.count(f"<h3>{FAILED}") == 50 * failing  # each failed check has its part
    assert html.count("Run again: <code>pytest") == 50 * failing


def test_failures_have_their_curves_before_any_check_that_passed() -> None:
    html = render(large_run(5, 40, 300, 2), size=400_000)
    assert len(html.encode()) < 400_000
    parts = html.split("<h3>")
    failing = [part for part in parts if part.startswith(FAILED)]
    assert len(failing) == 10
    assert all("<figure>" in part for part in failing)
    assert html.count("<figure>") < 50  # of 200 checks


@pytest.mark.parametrize(
    ("models", "tests", "count"), [(3000, 1, 3), (1, 6000, 1), (2, 1, 20_000)], ids=str
)
def test_many_of_anything_stay_below_the_limit(models: int, tests: int, count: int) -> None:
    html = render(large_run(models, tests, count, 1), size=600_000)
    assert len(html.encode()) < 600_000
    checked(html)
    assert "the JSON has all" in html


def test_long_texts_do_not_break_the_limit() -> None:
    long = "<&'\"" * 300_000
    entry = result("m" * 5000, ok=False, table=long, advice=long, headline=long, where=long)
    data = run(
        entry_of("t.py::" + long, entry, outcome="failed", rerun=long),
        gates=[gate("m", "failed", 1, long, message=long) for _ in range(200)],
        other_failures=[{"nodeid": long, "error": long} for _ in range(200)],
        crashed_workers=[long] * 50,
    )
    html = render(data, size=600_000)
    assert len(html.encode()) < 600_000
    checked(html)


def test_rows_of_a_list_that_has_no_room_are_counted() -> None:
    gates = [gate(f"metric_{i}", "passed", 1, ">= 0") for i in range(3000)]
    gates[2999].update(outcome="failed", metric="last", expression="last>=0")
    html = render(run(entry_of("t.py::test_a", result()), gates=gates), size=600_000)
    assert "last&gt;=0" in html
    assert re.search(r"The first \d+ of 3000 rows; the JSON has all", html)


def test_first_variant_that_fits_is_taken_and_paid() -> None:
    budget = Budget(1000)
    tried = []

    def variant(letters: int, least: int = 0) -> Variant:
        def make() -> Section:
            tried.append(letters)
            return Section("s", ["x" * letters])

        return Variant(make, least)

    fitted = budget.fit([variant(9000, least=9000), variant(800), variant(100)], 500)
    assert fitted.variant == 2
    assert tried == [800, 100]  # the first surely has no room, so it isn't made
    assert budget.left < 1000 - len(fitted.text)
    nothing = budget.fit([variant(2000)], 5000)
    assert (nothing.text, nothing.variant) == ("", 1)

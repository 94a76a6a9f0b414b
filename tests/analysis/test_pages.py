"""HTML views: what they must show, whole and escaped."""

from __future__ import annotations

import re

from qtune.analysis.compare import HEAD, TAIL, LayerComparison
from qtune.analysis.pages import badcase_page, compare_page, sensitivity_page
from qtune.analysis.sensitivity import COLUMNS
from qtune.analysis.sensitivity import HEAD as SENSITIVITY_HEAD
from qtune.profiler.bad_case_report import BadCaseReport
from qtune.profiler.metric import Metric
from qtune.profiler.sensitivity_table import SensitivityTable


def is_self_contained(html: str) -> bool:
    return not re.search(r"<(link|script|img)[^>]*(href|src)=", html)


def test_bad_case_page_shows_cases_statistics_and_percentiles() -> None:
    info = {"a-0": {"ATOL": [(7, 0.5), (2, 0.25)], "COSINE": [(2, 0.9)]}}
    values = {"a-0": {"ATOL": [0.1, None, 0.25, 0.5], "COSINE": [1.0, None, 0.9, float("nan")]}}
    report = BadCaseReport(info, values, {"ATOL": False, "COSINE": True})
    html = badcase_page(report)
    assert is_self_contained(html)
    assert "4 cases searched, 2 kept" in html
    assert html.count("<svg") == 2
    assert "99.99 %" in html  # the bad end of an error
    assert "0.01 %" in html  # the bad end of a similarity
    assert "0.2500000" in html


def test_compare_page_draws_each_metric_and_puts_advice_first() -> None:
    columns = (*HEAD, "COSINE", "ATOL", *TAIL)
    row = dict.fromkeys(columns, 0.5)
    rows = ({**row, "advice": ""}, {**row, "advice": "range <too> large", "ATOL": None})
    found = LayerComparison(columns, rows, ("conv", "_generated_add_0"))
    html = compare_page(found, [Metric.ATOL, Metric.COSINE])
    assert is_self_contained(html)
    assert html.count("<svg") == 2
    assert "2 operators, 1 with advice" in html
    assert "range &lt;too&gt; large" in html
    assert html.index(">Advice<") < html.index(">Curves<")
    assert "_generated_add_0" in html
    assert compare_page(LayerComparison(columns, (), ()), [Metric.ATOL])  # nothing to draw


def test_sensitivity_page_shows_mean_and_worst_and_every_case() -> None:
    columns = [*SENSITIVITY_HEAD, *(f"{name}_ATOL" for name in COLUMNS)]
    rows = [["conv", "Conv2d", "weight", "qint8", "9(1%)", 1.0, 0.0, 1.0, 0.25, 0.75, None]]
    cases = [
        SensitivityTable(columns, rows, "ATOL", False, "1", case) for case in ("mean", "worst", "4")
    ]
    html = sensitivity_page({"1": cases})
    for text in ("output 1", "mean over the cases", "worst of the cases", "case 4", "conv weight"):
        assert text in html
    assert html.count("<svg") == 3

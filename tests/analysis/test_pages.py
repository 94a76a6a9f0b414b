"""HTML views: what they must show, whole and escaped."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from qtune.analysis import sensitivity_page as sensitivity_page_module
from qtune.analysis.compare import HEAD, OWN_TAIL, TAIL, LayerComparison
from qtune.analysis.pages import badcase_page, compare_page, sensitivity_page
from qtune.analysis.sensitivity import COLUMNS
from qtune.analysis.sensitivity import HEAD as SENSITIVITY_HEAD
from qtune.analysis.sensitivity_page import MOST_ROWS
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


def test_an_output_without_a_name_is_called_the_same_everywhere() -> None:
    report = BadCaseReport({"": {"ATOL": [(0, 0.5)]}}, {"": {"ATOL": [0.5]}}, {"ATOL": False})
    html = badcase_page(report)
    statistics = html[html.index("Statistics") : html.index("Distributions")]
    assert re.search(r"<td[^>]*>the output</td>", statistics)
    assert report.statistics()[0]["output"] == ""


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


def table(
    case: str, rows: list[list[Any]], metric: str = "ATOL", *, ascending: bool = False
) -> SensitivityTable:
    columns = [*SENSITIVITY_HEAD, *(f"{name}_{metric}" for name in COLUMNS)]
    return SensitivityTable(columns, rows, metric, ascending, "1", case)


def row(name: str, gain: float | None, kind: str = "weight", low: float = 1.0) -> list[Any]:
    """round, clip, qint8, qint16, gain, fp16"""
    return [name, "Conv2d", kind, "qint8", "9(1%)", low, 0.0, low, 0.25, gain, None]


def test_sensitivity_page_shows_mean_and_worst_and_every_case() -> None:
    rows = [row("conv", 0.75), row("<b>head</b>", 0.5, "output", 0.75)]
    html = sensitivity_page({"1": [table(case, rows) for case in ("mean", "worst", "4")]})
    assert is_self_contained(html)
    for text in ("output 1", "mean over the cases", "worst of the cases", "case 4", "conv weight"):
        assert text in html
    # where it falls off, and bars of the gain, for each; round and qint8 besides for the first two
    assert html.count("<svg") == 3 * 2 + 2 * 2
    assert html.count("value everywhere, or none: clip_ATOL, qint16_ATOL, fp16_ATOL.") == 2
    assert "the first 2 hold 90% of the sum" in html
    assert "<b>head" not in html
    assert "&lt;b&gt;head&lt;/b&gt; output" in html
    single = html.index("<summary>case 4")
    assert "<details>" in html[single - 40 : single]  # folded, as the mean is there


def test_one_case_is_not_folded_and_needs_no_value() -> None:
    html = sensitivity_page({"1": [table("0", [row("conv", None)])]})
    assert "<summary>case 0" not in html
    assert ">case 0<" in html
    assert sensitivity_page({}).count("<svg") == 0
    assert sensitivity_page({"1": [table("0", [])]}).count("<svg") == 0


def test_bars_of_a_similarity_show_the_worst_first_and_what_is_missing() -> None:
    rows = [row("good", 0.0, low=0.75), row("bad", 0.5, low=0.25)]
    html = sensitivity_page({"1": [table("0", rows, "COSINE", ascending=True)]})
    assert "0.75 - qint8_COSINE" in html
    picture = html[html.index("qint8_COSINE, worst first") :]
    assert picture.index("bad weight: 0.5") < picture.index("good weight: 0.0")


def test_tables_of_gradients_are_shown_by_their_own_columns() -> None:
    columns = [*SENSITIVITY_HEAD, "GRAD_X_ERROR", "GRAD_MAGNITUDE", "ERROR_MAGNITUDE"]
    rows = [["conv", "Conv2d", "weight", "qint8", "9(1%)", 2.0, 1.0, 4.0]]
    found = SensitivityTable(columns, rows, "GRAD_X_ERROR", False, "all", "0")
    html = sensitivity_page({"all": [found]})
    assert "Where GRAD_X_ERROR falls off" in html
    assert "GRAD_MAGNITUDE, worst first" in html
    assert "Each fake-quantize by GRAD_X_ERROR" in html


def test_nan_and_infinities_are_marked_and_missing_values_are_empty() -> None:
    rows = [row("a", math.nan), row("b", math.inf), row("c", 0.5), row("d", None)]
    html = sensitivity_page({"1": [table("0", rows)]})
    assert '<td class="number"><b class="odd">NaN</b></td>' in html
    assert '<td class="number"><b class="odd">inf</b></td>' in html
    assert '<td class="number"></td>' in html
    assert ">NaN</text>" in html


def test_thousands_of_operators_make_a_page_of_bounded_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "backbone.stages.{}.blocks.{}.attention.relative_position_bias.projection"
    rows = [row(name.format(i % 7, i), 1.0 / (i + 1)) for i in range(4000)]
    part = 20  # a page of a part of the size, as it takes seconds to make
    monkeypatch.setattr(sensitivity_page_module, "MOST_ROWS", MOST_ROWS // part)
    html = sensitivity_page({"1": [table(str(case), rows) for case in range(6)]})
    assert "first 100 of 4000 rows; the text files have all" in html.lower()
    pictures = 100_000  # of each table
    assert len(html) < 10_000_000 / part + 6 * pictures
    columns = (*HEAD, "ATOL", *TAIL)
    layer = {**dict.fromkeys(columns, 0.1234567), "advice": ""}
    names = tuple(name.format(i % 7, i) for i in range(2000))
    html = compare_page(LayerComparison(columns, (layer,) * 2000, names), [Metric.ATOL])
    assert len(html) < 8_000_000
    assert html.count("<text") < 200
    assert all(name in html for name in names)


def test_own_errors_and_operators_left_out_have_sections() -> None:
    columns = (*HEAD, "ATOL", *TAIL)
    layers = [
        {**dict.fromkeys(columns, 0.5), "advice": "", OWN_TAIL[0]: 1.0, OWN_TAIL[1]: ratio}
        for ratio in (30.0, 10.0, None)
    ]
    layers[2][OWN_TAIL[0]] = None
    left_out = {"gone": "another <shape>"}
    found = LayerComparison(columns, tuple(layers), ("a", "b", "c"), OWN_TAIL, left_out)
    html = compare_page(found, [Metric.ATOL])
    own = html[html.index(">Own errors<") : html.index(">Operators<")]
    assert own.index("b: 10.0") < own.index("a: 30.0")
    assert "another &lt;shape&gt;" in html
    assert html.count("<svg") == 3


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_bad_case_page_says_what_it_does_not_draw(number: float) -> None:
    values: dict[str, dict[str, list[float | None]]] = {"": {"ATOL": [0.5, number, None]}}
    report = BadCaseReport({"": {"ATOL": [(1, number)]}}, values, {"ATOL": False})
    html = badcase_page(report)
    assert "1 of 2 cases are NaN or infinite; not drawn." in html
    assert '<b class="odd">' in html
    empty = BadCaseReport({"": {"ATOL": []}}, {"": {"ATOL": [None]}}, {"ATOL": False})
    assert "No case has a value." in badcase_page(empty)

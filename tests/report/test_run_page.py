"""The page about a run, from data as the plugin gives it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from .runs import Entry, baseline, entry_of, gate, layers, render, result, run
from .test_page import EVIL, Checker, checked


def failed(entry: Entry, **more: Any) -> Entry:
    return entry_of("t.py::test_bad", entry, outcome="failed", **more)


def page_of(data: Entry) -> Checker:
    return checked(render(data))


def titles(page: Checker, tag: str) -> list[str]:
    return [text for name, text in page.headings if name == tag]


def test_passing_run() -> None:
    page = page_of(run(entry_of("t.py::test_a", result())))
    assert "All checks passed." in page.text
    assert titles(page, "h2") == ["Summary", "net", "Settings"]
    assert "ok Consistency: COSINE 0.99, limit >= 0.98 (test_a)" in titles(page, "summary")
    assert "4 qint8, 1 qint16" in page.text
    for text in ("nash-e", "store/net.bc", "artefacts built", "min_cosine = 0.99"):
        assert text in page.text


def test_failed_check_is_open_and_says_how_to_repeat_it_and_what_to_do() -> None:
    command = "pytest --qtune 't.py::test_bad[a b]'"
    page = page_of(run(failed(result(ok=False), rerun=command)))
    assert "Some checks failed." in page.text
    assert "FAIL Consistency: COSINE 0.5, limit >= 0.98 (test_bad)" in titles(page, "h3")
    assert f"Run again: {command}" in page.text
    assert "Raise it to qint16." in page.text
    assert "consistency: head: got COSINE 0.5, limit >= 0.98" in page.text
    first = "First bad layer in order of execution: backbone.stage0.block2.conv (net.py:2)."
    assert first in page.text


def test_long_table_of_a_failed_check_is_folded_below_the_worst_rows() -> None:
    html = render(run(failed(result(ok=False, count=30))))
    assert "<details open>\n  <summary>The worst 1 of 30 layers</summary>" in html
    folded = "<details>\n  <summary>30 layers, 1 beyond the limit, in order of execution</summary>"
    assert folded in html


def test_failures_come_first_among_models_and_checks() -> None:
    good, bad = result("a"), result("z", ok=False)
    page = page_of(run(entry_of("t.py::test_good", good, result("z")), failed(bad)))
    assert titles(page, "h2") == ["Summary", "z", "a", "Settings"]
    assert re.findall(r"(ok|FAIL)\s*consistency\s*head", page.text) == ["FAIL", "ok", "ok"]


def test_failure_that_its_test_expects_is_caught() -> None:
    for outcome in ("passed", "xfailed"):
        html = render(run(entry_of("t.py::test_a", result(ok=False), outcome=outcome)))
        assert '<span class="badge caught">caught</span>' in html
        assert "failed, as their tests expect" in html
        assert "All checks passed." in html


def test_structure_and_sensitivity_have_their_own_parts() -> None:
    structure = result(check="no_shared_ops", got="1 call each", limit="1 call")
    ports = result(check="sensitivity_below", parts="ports", measured="ATOL of this port alone")
    html = render(run(entry_of("t.py::test_a", structure, ports, result())))
    page = checked(html)
    assert "ok Structure: no shared ops: 1 call each, limit 1 call (test_a)" in page.text
    assert "ok Sensitivity below: COSINE 0.99, limit >= 0.98 (test_a)" in page.text
    assert "5 ports, 0 beyond the limit, in order of execution" in page.text
    assert html.count("<figure>") == 3  # bars, curve, data types


def test_gates_show_value_limit_and_baseline_failed_ones_first() -> None:
    gates = [
        gate("min_sqnr_db", "passed", 31.25, ">= 25"),
        gate("top1_drop_pp", "failed", 0.9, "<= 0.5", baseline=71.5),
        gate("cpu_ops", "failed", "NaN", "== 0"),
        gate("latency_us", "skipped", None, "<= 10"),
    ]
    data = run(entry_of("t.py::test_a", result()), gates=gates)
    page = page_of(data)
    assert "2 failed, 1 skipped, 1 passed." in page.text
    assert "No check failed, but gates or baselines did." in page.text
    assert re.search(r"2\s*of 4 gates failed", page.text)
    order = [page.text.index(metric) for metric in ("top1_drop_pp", "latency_us", "min_sqnr_db")]
    assert order == sorted(order)
    for text in ("31.25", "71.5", "NaN", "top1_drop_pp of net: got 0.9, limit <= 0.5"):
        assert text in page.text


def test_baselines_show_their_statuses_bad_ones_first() -> None:
    found = [
        baseline("equal", "a_name"),
        baseline("lost", "b_name", value=None, note="run with --qtune-update"),
        baseline("a status of tomorrow", "c_name"),
    ]
    page = page_of(run(entry_of("t.py::test_a", result()), baselines=found))
    assert "1 lost, 1 equal, 1 a status of tomorrow." in page.text
    assert page.text.index("b_name") < page.text.index("a_name") < page.text.index("c_name")
    assert "run with --qtune-update" in page.text


def test_long_lists_without_a_failure_are_folded() -> None:
    gates = [gate(f"m{i}", "passed", 1, ">= 0") for i in range(30)]
    assert "All 30" in titles(
        page_of(run(entry_of("t.py::test_a", result()), gates=gates)), "summary"
    )
    gates[7]["outcome"] = "failed"
    page = page_of(run(entry_of("t.py::test_a", result()), gates=gates))
    assert "All 30" not in titles(page, "summary")


def test_stored_value_of_a_check_is_shown() -> None:
    page = page_of(run(entry_of("t.py::test_a", result(baseline="0.995 (2 weeks ago)"))))
    assert page.text.count("0.995 (2 weeks ago)") == 2  # in the table, and with the check


def test_failures_that_are_no_failed_check_are_listed() -> None:
    test = entry_of("t.py::test_early", outcome="failed") | {"error": "ValueError: empty"}
    others = [{"nodeid": "t_broken.py", "error": "ImportError: no module"}]
    data = run(test, other_failures=others, crashed_workers=["gw0: died"])
    page = page_of(data)
    for text in ("t.py::test_early", "ValueError: empty", "ImportError: no module"):
        assert text in page.text
    assert re.search(r"gw0\s+died", page.text)
    assert "Some checks failed." in page.text


def test_crash_alone_is_no_passed_run() -> None:
    page = page_of(run(entry_of("t.py::test_a", result()), crashed_workers=["gw0: died"]))
    assert "No check failed, but other tests of this run did." in page.text


def test_run_without_checks_says_so() -> None:
    page = page_of(run())
    assert "No check was made." in page.text
    assert "No test of this run made a qtune assertion." in page.text


def test_data_of_schema_1_still_render() -> None:
    old = run(failed(result(ok=False)))
    for key in ("gates", "baselines", "other_failures"):
        del old[key]
    for key in ("parts", "baseline"):
        del old["tests"][0]["results"][0][key]
    for layer in old["tests"][0]["results"][0]["layers"]:
        del layer["source"]
    old["totals"] = {"checks": 1, "models": 1, "failed": 1, "caught": 0, "errors": 0}
    assert "Some checks failed." in page_of(old).text


def test_numbers_that_json_cannot_hold_stand_out() -> None:
    odd = layers(6, ok=False)
    odd[1].update(value="NaN", badness="NaN", ok=False)
    odd[2].update(value="Infinity", badness="Infinity", scale="NaN")
    odd[4].update(value=None, badness=0.0, scale=None, shape=[], dtype="")
    entry = result(ok=False, layers=odd, metrics={"min_cosine": "NaN", "none": None})
    html = render(run(failed(entry)))
    page = checked(html)
    assert "min_cosine = NaN, none = n/a" in page.text
    assert "the worst is backbone.stage0.block1.conv with NaN." in page.text
    assert "block1.conv: nan" in html
    assert "block2.conv: inf" in html


NAMES = [
    EVIL,
    "n" * 300,
    "דגם שלום",
    "🚀 net",
    "a\x1b[31m\x00",
    "</svg></table></details>",
    "  ",
    "\udce9",
]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_any_name_is_shown_as_text(name: str) -> None:
    texts = ("where", "got", "limit", "headline", "table", "advice", "measured", "artefact")
    entry = result(name, ok=False, provenance={name: name}) | dict.fromkeys(texts, name)
    entry["layers"] = [{**layer, "name": name + layer["name"]} for layer in entry["layers"]]
    data = run(
        entry_of(name, entry, outcome="failed", rerun=name),
        gates=[gate(name, "failed", 1, name, model=name, message=name)],
        baselines=[baseline("stale", name, key=name, note=name, file=name)],
        other_failures=[{"nodeid": name, "error": name}],
        crashed_workers=[name],
    )
    html = render(data)
    page = checked(html)
    assert "script" not in page.tags
    assert html.encode()  # no lone surrogate is left
    shown = name.replace("\x1b", "␛").replace("\x00", "␀").replace("\udce9", "\\udce9")
    assert page.text.count(shown) > 20


def test_page_needs_no_script_no_network_and_no_style() -> None:
    """Jenkins' policy allows none of them: default-src 'none', style-src 'self', no inline."""
    data = run(
        failed(result(ok=False, count=40)),
        entry_of("t.py::test_a", result("other")),
        gates=[gate("m", "failed", 1, ">= 2")],
    )
    html = render(data)
    page = checked(html)
    assert not {"script", "iframe", "object", "embed", "link", "img", "form"} & set(page.tags)
    for name, value in page.attributes:
        assert not name.startswith("on")
        assert name not in ("style", "src", "srcset", "action")
        assert name != "href" or value.startswith("#")
    assert "http:" not in html.replace("http://www.w3.org", "")
    assert "https:" not in html
    assert "url(" not in html
    assert "@import" not in html


def test_links_lead_to_places_of_the_page() -> None:
    tests = [
        entry_of(f"t.py::test_{i}", result(name)) for i, name in enumerate(("a b", "a-b", "💥"))
    ]
    page = page_of(run(*tests))
    ids = [value for name, value in page.attributes if name == "id"]
    links = [value for name, value in page.attributes if name == "href"]
    assert len(ids) == len(set(ids))
    assert len(links) == 3
    assert {link.removeprefix("#") for link in links} <= set(ids)


def test_pictures_have_a_name_and_words() -> None:
    html = render(run(failed(result(ok=False, count=12))))
    drawn = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    assert len(drawn) == 2
    assert "<title>COSINE of each operator</title>" in drawn[0]
    said = "12 layers, 1 beyond the limit (&gt;= 0.98); the worst is backbone.stage0.block6.conv"
    assert f"<desc>{said} with 0.5.</desc>" in drawn[0]
    assert "<desc>10 qint8, 2 qint16</desc>" in drawn[1]


def test_headings_go_down_one_level_at_a_time() -> None:
    page = page_of(run(failed(result(ok=False, count=40)), entry_of("t.py::test_a", result())))
    levels = [int(tag[1]) for tag, _ in page.headings if tag != "summary"]
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in zip(levels, levels[1:], strict=False))


def test_where_and_when_a_run_was_made_is_among_its_settings() -> None:
    about = {"started": "2026-01-02T03:04:05+00:00", "seconds": 1.5, "processes": [{"id": "gw0"}]}
    page = page_of(run(entry_of("t.py::test_a", result()), run=about, qtune="1.2.3"))
    for text in ("2026-01-02T03:04:05+00:00", "gw0", "1.2.3"):
        assert text in page.text


def test_limit_on_the_whole_is_not_drawn_as_one_on_each_layer() -> None:
    """A latency is a sum: no operator is beyond the limit, the check failed all the same."""
    whole = result(ok=False, layers=layers(8), limits={"latency_us": 5.0}, measured="microseconds")
    (part, _) = re.findall(r"<svg.*?</svg>", render(run(failed(whole))), re.DOTALL)
    assert ">limit 5" not in part
    (part, _) = re.findall(r"<svg.*?</svg>", render(run(failed(result(ok=False)))), re.DOTALL)
    assert ">limit 0.98" in part


def test_what_was_found_in_words_is_in_the_table() -> None:
    entry = result(check="qconfig", ok=False, parts="ports", count=3)
    for layer in entry["layers"]:
        layer.update(value=None, found="got qint8, expected qint16")
    html = render(run(failed(entry)))
    assert html.count("got qint8, expected qint16") == 3
    assert "<svg" not in html  # ports have no dtype of a result, and no number


def test_operators_on_the_cpu_are_no_map_of_dtypes() -> None:
    page = page_of(run(failed(result(check="on_bpu", ok=False))))
    assert "Data types" not in titles(page, "h3")


def test_outputs_have_no_order() -> None:
    page = page_of(run(failed(result(ok=False, parts="outputs"))))
    assert "5 outputs, 1 beyond the limit" in titles(page, "summary")
    assert "First bad" not in page.text
    page = page_of(run(failed(result(ok=False, parts="ports"))))
    assert "First bad port in order of execution: backbone.stage0.block2.conv" in page.text

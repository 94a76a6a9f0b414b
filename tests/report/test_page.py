"""The page template: complete without scripts, everything escaped."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from qtune.report.drawing import COLORS, GRID, INK, RED, SOFT
from qtune.report.page import Link, Section, Table, Tile, cell_text, fragment, render

EVIL = "<script>alert('x')</script> & \"quoted\" 'single'"
VOID = {"meta", "br", "hr", "img", "link", "input", "wbr"}
HEADINGS = {"h1", "h2", "h3", "h4", "summary"}


class Checker(HTMLParser):
    """Refuses tags that are not closed in order; collects text, tags, attributes, headings."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.headings: list[tuple[str, str]] = []
        self.pieces: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag in HEADINGS:
            self.headings.append((tag, ""))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.pieces.append(data)
        if not HEADINGS.isdisjoint(self.open):
            tag, text = self.headings[-1]
            self.headings[-1] = tag, text + data

    @property
    def text(self) -> str:
        return "".join(self.pieces)


def checked(html: str) -> Checker:
    checker = Checker()
    checker.feed(html)
    assert checker.open == []
    return checker


def everything(text: str) -> str:
    table = Table(
        ("a", "s", "l"),
        [{"a": text, "s": text, "l": text, "bad": True}],
        bad="bad",
        caption=text,
        status="s",
        link="l",
    )
    inner = Section(text, [text], collapsed=False)
    folded = Section(text, preformatted=[text], collapsed=True)
    sections = [Section(text, [text], [table], (), [text], [inner, folded])]
    return render(text, sections, subtitle=text, tiles=[Tile(text, text, "bad")])


def test_all_text_is_escaped() -> None:
    page = checked(everything(EVIL))
    assert "script" not in page.tags
    assert page.text.count(EVIL) >= 12


def test_page_needs_nothing_from_outside() -> None:
    html = render("t", [Section("s", ["text"])])
    assert "<script" not in html
    assert "src=" not in html
    assert "http" not in html
    assert html.lstrip().startswith("<!DOCTYPE html>")


def test_script_comes_only_where_asked() -> None:
    assert "<script" in render("t", [], sortable=True)


def test_pictures_go_in_as_they_are() -> None:
    assert "<figure><svg></svg></figure>" in render("t", [Section("s", pictures=["<svg></svg>"])])


def test_links_lead_to_the_section_of_that_title() -> None:
    table = Table(("model",), [{"model": "my net <1>"}], link="model")
    html = render("t", [Section("Summary", tables=[table]), Section("my net <1>")])
    assert '<a href="#s-my-net-1-">' in html
    assert '<h2 id="s-my-net-1-">' in html


@pytest.mark.parametrize("collapsed", [True, False])
def test_folding_sections(collapsed: bool) -> None:
    html = render("t", [Section("s", ["inside"], collapsed=collapsed)])
    assert ("<details open>" in html) is not collapsed
    assert "inside" in html


def test_numbers_are_printed_as_in_the_documents_and_aligned() -> None:
    table = Table(("v",), [{"v": 0.5}, {"v": None}], numeric=("v",))
    html = render("t", [Section("s", tables=[table])])
    assert '<td class="number">0.5000000</td>' in html
    assert '<td class="number"></td>' in html


def test_missing_column_is_an_error_not_an_empty_cell() -> None:
    with pytest.raises(KeyError, match="'v'"):
        render("t", [Section("s", tables=[Table(("v",), [{"w": 1}])])])


def test_cells_have_seven_significant_digits() -> None:
    numbers = [0.5, 1234.56789, 1.5e-9, 12345678901.0, 0.0, -0.25]
    assert [cell_text(v) for v in numbers] == [
        "0.5000000",
        "1234.568",
        "1.500000e-09",
        "1.234568e+10",
        "0",
        "-0.2500000",
    ]
    assert [cell_text(v) for v in (None, 3, True, "x")] == ["", "3", "True", "x"]


def test_nan_and_infinities_are_marked() -> None:
    rows = [{"v": float("nan")}, {"v": float("-inf")}]
    html = render("t", [Section("s", tables=[Table(("v",), rows, numeric=("v",))])])
    assert '<b class="odd">NaN</b>' in html
    assert '<b class="odd">-inf</b>' in html


def test_a_table_that_is_too_long_is_cut_and_says_so() -> None:
    rows = [{"v": i} for i in range(30)]
    page = checked(render("t", [Section("s", tables=[Table(("v",), rows, caption="c", most=10)])]))
    assert page.tags.count("tr") == 11
    assert "c (the first 10 of 30 rows; the text files have all)" in page.text


def test_links_lead_to_files_beside_the_page() -> None:
    page = render("T", [Section("S", links=[Link("all <rows>", "a b.html")])])
    assert '<a href="a%20b.html">all &lt;rows&gt;</a>' in page


def test_ready_fragments_go_in_as_they_are() -> None:
    section = Section("my <part>", ["text"], facts=[("Path", "a/b::c")], status="FAIL")
    ready = fragment(section, 3)
    assert ready in render("t", [ready])
    page = checked(str(ready))
    assert page.headings == [("h3", "FAIL my <part>")]
    assert "Path: a/b::c" in page.text


def test_targets_of_links_need_not_be_titles() -> None:
    table = Table(("model",), [{"model": "net"}], link="model", targets={"net": "model-1"})
    html = render("t", [Section("s", tables=[table]), Section("net", anchor="model-1")])
    assert '<a href="#model-1">net</a>' in html
    assert '<h2 id="model-1">net</h2>' in html


def test_tables_are_readable_without_the_style_sheet() -> None:
    table = Table(("v",), [{"v": 1, "bad": True}], bad="bad")
    html = render("t", [Section("s", tables=[table])])
    assert '<table border="1" cellpadding="4" cellspacing="0">' in html
    assert '<tr class="bad" bgcolor="#fdecea">' in html
    assert '<th scope="col">v</th>' in html
    assert "style=" not in html


def test_control_characters_become_visible() -> None:
    page = checked(render("a\x00\x1b[31m", [Section("s", ["line\nline"])]))
    assert "a␀␛[31m" in page.text
    assert "line\nline" in page.text


def test_each_colour_of_a_picture_has_one_for_dark_screens() -> None:
    html = render("t", [])
    dark = html[html.index("prefers-color-scheme: dark") :]
    for color in (INK, SOFT, RED, *COLORS):
        assert f'svg [fill="{color}"]' in dark
    for color in (GRID, RED, *COLORS):
        assert f'svg [stroke="{color}"]' in dark


def test_folded_parts_are_open_in_print() -> None:
    html = render("t", [])
    print_rules = html[html.index("@media print") :]
    assert "details::details-content { content-visibility: visible;" in print_rules

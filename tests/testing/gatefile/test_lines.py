"""Line numbers of keys in TOML: every way to write a table or a key."""

from __future__ import annotations

import tomllib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from qtune.testing.gatefile.lines import Path, key_lines, line_of

TEXT = '''\
# a comment with [brackets] = 1
top = 1

[model]  # trailing
"quoted key" = "a # no comment"
plain = """
[not] = a table
\\""" still = inside
""""
'literal.key' = \'\'\'
x = 1
\'\'\'
dotted.inner = [
  1, # one
  {deep = [
    2]},
]

[[check]]
kind = "a"
table = {x = 1, "y z" = {q = 2}}
when = 1979-05-27 07:32:00

[[check]]
kind = 'b'
[check.sub]
leaf = true
[[check.part]]
n = 1
[[check.part]]
n = 2
'''


def paths(value: Any, path: Path = ()) -> list[Path]:
    """Every path of a document that is a key of a table or an item of an array of tables."""
    found: list[Path] = []
    if isinstance(value, dict):
        for key, inner in value.items():
            found += [(*path, key), *paths(inner, (*path, key))]
    if isinstance(value, list):
        for index, inner in enumerate(value):
            found += [(*path, index), *paths(inner, (*path, index))]
    return found


def test_every_key_has_the_line_where_it_stands() -> None:
    lines = key_lines(TEXT)
    assert set(paths(tomllib.loads(TEXT))) == set(lines)
    expected = {
        ("top",): 2,
        ("model",): 4,
        ("model", "quoted key"): 5,
        ("model", "plain"): 6,
        ("model", "literal.key"): 10,
        ("model", "dotted", "inner"): 13,
        ("model", "dotted", "inner", 0): 14,
        ("model", "dotted", "inner", 1, "deep"): 15,
        ("model", "dotted", "inner", 1, "deep", 0): 16,
        ("check", 0): 19,
        ("check", 0, "table", "y z", "q"): 21,
        ("check", 0, "when"): 22,
        ("check", 1): 24,
        ("check", 1, "sub", "leaf"): 27,
        ("check", 1, "part", 0, "n"): 29,
        ("check", 1, "part", 1, "n"): 31,
    }
    assert {path: lines[path] for path in expected} == expected


def test_lines_that_end_in_crlf_count_once() -> None:
    assert key_lines(TEXT.replace("\n", "\r\n")) == key_lines(TEXT)


def test_a_missing_key_has_the_line_of_its_table() -> None:
    lines = key_lines(TEXT)
    assert line_of(lines, ("check", 1, "min_cosine")) == 24
    assert line_of(lines, ("nothing",)) == 1


WORDS = st.text("a.#=\"'[]{}\\, é", max_size=3)
LEAVES = st.one_of(st.integers(-9, 9), st.booleans(), WORDS)
ROWS = st.lists(LEAVES, max_size=2) | st.dictionaries(WORDS, LEAVES, max_size=2)
VALUES = st.one_of(LEAVES, ROWS, st.lists(ROWS, max_size=2))
TREES = st.dictionaries(WORDS, VALUES, max_size=3)


def written(value: Any) -> str:
    """``value`` in TOML, on one line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{text(k)} = {written(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(written, value)) + "]"
    return text(value) if isinstance(value, str) else str(value)


def text(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


@given(TREES)
def test_any_document_is_scanned_as_the_parser_reads_it(tree: dict[str, Any]) -> None:
    document = "\n".join(f"{text(key)} = {written(value)}" for key, value in tree.items())
    assert tomllib.loads(document) == tree
    lines = key_lines(document)
    assert set(lines) == set(paths(tree))
    assert [lines[(key,)] for key in tree] == list(range(1, len(tree) + 1))

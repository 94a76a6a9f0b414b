"""Lists on a command line, with and without quotes, and through a real shell."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from qtune.errors import ArgumentError
from qtune.onnx_debug.command_lists import join_lists, read_list


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[a,b]", ["a", "b"]),
        ("['a','b']", ["a", "b"]),
        ('["a", "b"]', ["a", "b"]),
        ("[ a , b ]", ["a", "b"]),
        ("[[a,b],[c]]", [["a", "b"], ["c"]]),
        ("[['Conv_2'],['Conv_9','Conv_2']]", [["Conv_2"], ["Conv_9", "Conv_2"]]),
        ("[[a],b]", [["a"], "b"]),
        ("[/m.0/Conv:0;1,..x]", ["/m.0/Conv:0;1", "..x"]),
        ("['a,b',c]", ["a,b", "c"]),
        ("[a[0],b]", ["a[0]", "b"]),
        ("[a,]", ["a"]),
        ("[]", []),
        ("[[]]", [[]]),
        ("a", "a"),
        ("'a'", "a"),
        ("None", None),
    ],
)
def test_a_list_is_read(text: str, value: Any) -> None:
    assert read_list(text, nested=True) == value


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[a", "never closed"),
        ("[a,", "never closed"),
        ("[[a,b]", "never closed"),
        ("[a]]", "stands behind"),
        ("[a]b", "stands behind"),
        ("[a,,b]", "a name is missing"),
        ("[,a]", "a name is missing"),
        ("['']", "a name is missing"),
        ("['a]", "quote ' is never closed"),
        ("['a' b]", "expected , or ]"),
        ("[[[a]]]", "nested too deep"),
        ("", "empty"),
    ],
)
def test_what_is_no_list_is_quoted_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        read_list(text, nested=True)
    assert why in str(caught.value)
    assert text in str(caught.value)


def test_nesting_is_refused_where_names_are_wanted() -> None:
    with pytest.raises(ArgumentError, match="nested too deep"):
        read_list("[[a]]")


def test_words_of_one_list_are_joined() -> None:
    words = ["m.onnx", "-n", "[a,", "b", "c]", "--q=[[a],", "[b]]", "-s", "out"]
    assert join_lists(words) == ["m.onnx", "-n", "[a, b c]", "--q=[[a], [b]]", "-s", "out"]
    assert join_lists(["[a,", "b", "-s"]) == ["[a,", "b", "-s"]


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("-n ['Conv_2','Conv_9']", {"nodes_list": ["Conv_2", "Conv_9"]}),
        ("-n [Conv_2, 'Conv_9'] -s out", {"nodes_list": ["Conv_2", "Conv_9"], "save_dir": "out"}),
        ("-n \"['/a/b.0:1','c;d']\"", {"nodes_list": ["/a/b.0:1", "c;d"]}),
        ("-n 'a b'", {"nodes_list": "a b"}),
        ("--nodes-list=[a,b]", {"nodes_list": ["a", "b"]}),
        ("--nodes_list=['a', 'b']", {"nodes_list": ["a", "b"]}),
        ("-n [None]", {"nodes_list": ["None"]}),
    ],
)
def test_a_shell_hands_lists_over(typed: str, expected: dict[str, Any], tmp_path: Path) -> None:
    program = (
        "import json, sys; from qtune.onnx_debug import command; a = vars(command.read(sys.argv[1:"
        "])); del a['command']; json.dump(a, sys.stdout)"
    )
    line = f'"$0" -c "$1" plot-distribution m.onnx data {typed}'
    done = subprocess.run(
        ["bash", "-c", line, sys.executable, program],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    got = json.loads(done.stdout)
    assert (got["model_or_file"], got["calibrated_data"]) == ("m.onnx", "data")
    assert got.items() >= expected.items()

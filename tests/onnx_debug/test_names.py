"""Names of files that are made of names of nodes."""

from __future__ import annotations

import pytest

from qtune.onnx_debug.names import file_stem


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("Conv_2", "Conv_2"),
        ("/model/conv:0", "model_conv_0"),
        ("../../etc/x", "etc_x"),
        ("\u5377\u79ef", "node"),
        ("..", "node"),
        ("a" * 200, "a" * 120),
        ("x" + "." * 60 + "y" * 100, "y" * 100),  # never hidden, never an option
    ],
)
def test_a_stem_has_letters_that_every_file_system_takes(name: str, stem: str) -> None:
    assert file_stem(name, set()) == stem


def test_stems_differ_whatever_the_case() -> None:
    taken: set[str] = set()
    names = ["a/b", "a:b", "A_B", "a_b_1", "a b"]
    assert [file_stem(name, taken) for name in names] == [
        "a_b",
        "a_b_1",
        "A_B_2",
        "a_b_1_1",
        "a_b_3",
    ]

"""Names of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from qtune.analysis.files import sensitivity_stem, tuned_stem

FOLDER = Path("out")


def test_files_have_the_documented_names() -> None:
    assert sensitivity_stem(FOLDER, "aux-0", "2").name == "output_aux-0_case_2_sensitive_ops"
    old = sensitivity_stem(FOLDER, "", "2", metric="L1").name
    assert old == "output__case_2_L1_sensitive_ops"
    assert tuned_stem(FOLDER, "boxes", 1).name == "output_boxes_tuned_case_1_sensitive_ops"


@pytest.mark.parametrize("name", ["../up", "a/b", "a\\b", "x" * 300, "名" * 100])
def test_no_name_leads_out_of_the_folder_or_is_too_long(name: str) -> None:
    for stem in (
        sensitivity_stem(FOLDER, name, "case_worst"),
        sensitivity_stem(FOLDER, "", "0", metric=name),
        tuned_stem(FOLDER, name, 10**6),
    ):
        assert stem.parent == FOLDER
        # a temporary name has 21 characters more; 255 bytes is the limit of file systems
        assert len(stem.name.encode()) + 21 <= 255


def test_long_names_stay_apart() -> None:
    first, second = (sensitivity_stem(FOLDER, "x" * 300 + end, "0") for end in "ab")
    assert first != second


def test_separators_do_not_make_two_names_one() -> None:
    names = ("a/b", "a\\b", "a_b")
    assert len({sensitivity_stem(FOLDER, name, "0") for name in names}) == 3
    assert sensitivity_stem(FOLDER, "a_b", "0").name == "output_a_b_case_0_sensitive_ops"

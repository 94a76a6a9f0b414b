"""The pages about fuzzing and about an operator of one's own: their files run as written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGES = Path(__file__).parents[2] / "docs" / "how-to"
FILE = re.compile(r"^```python\n# (\w+\.py)\n(.*?)^```", re.M | re.S)


@pytest.mark.parametrize(
    ("page", "options", "passed"),
    [("fuzz.md", [], 3), ("write-an-operator.md", ["--qtune-fuzz=negative_part"], 3)],
)
def test_files_of_the_page_run(
    page: str, options: list[str], passed: int, pytester: pytest.Pytester
) -> None:
    for name, text in FILE.findall((PAGES / page).read_text()):
        (pytester.path / name).write_text(text)
    result = pytester.runpytest_subprocess("-p", "no:randomly", *options)
    result.assert_outcomes(passed=passed)

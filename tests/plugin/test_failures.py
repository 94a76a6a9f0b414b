"""The failing cases of every assertion, in pytest with and without ``--qtune`` and in plain Python.

What the messages say in detail is in ``tests/testing/test_failures.py``.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.testing.failing import CASES

ROOT = Path(__file__).resolve().parents[2]

ODD = """
import pytest
from tests.testing.failing import CASES, Models


@pytest.fixture(scope="session")
def models(qtune_stages):
    return Models(qtune_stages)


class TestOdd:
    @pytest.mark.parametrize("odd", ["it's [x]::y/<é> 1%"])
    @pytest.mark.parametrize("case", CASES)
    def test_fails(self, models, case, odd):
        CASES[case].call(models)
"""

PLAIN = """
import json, sys
from functools import partial
from importlib.machinery import SourceFileLoader
from pathlib import Path

as_ever = SourceFileLoader.get_code

def optimized(self, name):
    if name.partition(".")[0] not in ("qtune", "tests", "probe"):
        return as_ever(self, name)
    path = self.get_filename(name)
    return compile(self.get_data(path), path, "exec", dont_inherit=True, optimize=1)

SourceFileLoader.get_code = optimized  # what -O does, but all of torch need not be compiled anew
Path("probe.py").write_text("ASSERTS = __debug__")
sys.path.insert(0, ".")
import probe
from qtune.testing import DirectoryStore, Stages
from tests.testing.failing import CASES, Models

found = {}
models = Models(partial(Stages, store=DirectoryStore("store")))
for name, case in CASES.items():
    try:
        case.call(models)
    except AssertionError as error:
        found[name] = [type(error).__name__, str(error), error.qtune_result.ok]
facts = {"found": found, "asserts": probe.ASSERTS, "pytest": "pytest" in sys.modules}
Path("found.json").write_text(json.dumps(facts))
"""


def headlines(output: str) -> list[str]:
    return re.findall(r"^E +AssertionError: (.*)$", output, re.MULTILINE)


def commands(output: str) -> list[list[str]]:
    return [shlex.split(c) for c in re.findall(r"^E +run again: (.*)$", output, re.MULTILINE)]


def python(*args: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """This interpreter in ``folder``, with the cases on its path."""
    outside = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "QTUNE_"))}
    call = [sys.executable, *args]
    environment = outside | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        call, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_every_assertion_fails_without_the_report_and_its_command_repeats_it_with_it(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_odd=ODD)
    result = pytester.runpytest()
    result.assert_outcomes(failed=len(CASES))
    wanted = [case.headline for case in CASES.values()]
    assert headlines(result.stdout.str()) == wanted
    found = commands(result.stdout.str())
    assert [tuple(words[:-1]) for words in found] == [("pytest", "--qtune")] * len(CASES)
    assert all(words[-1].startswith("test_odd.py::TestOdd::test_fails[") for words in found)
    one = pytester.runpytest(*found[1][1:]).stdout.str()
    assert headlines(one) == [wanted[1]]
    assert commands(one) == [found[1]]
    ids = [words[-1] for words in found]  # all in one run: each would build its models again
    rest = pytester.runpytest("--qtune", *ids, "-q").stdout.str()
    assert headlines(rest) == wanted
    assert commands(rest) == found
    assert f"qtune: {len(CASES)} checks on " in rest
    assert f", {len(CASES)} failed" in rest


def test_plain_python_gets_the_same_messages_even_optimized(tmp_path: Path) -> None:
    """Optimized code has no ``assert`` statements, and nothing may depend on one."""
    (tmp_path / "plain.py").write_text(PLAIN)
    done = python("plain.py", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    facts = json.loads((tmp_path / "found.json").read_text())
    assert not facts["asserts"]
    assert not facts["pytest"]
    assert list(facts["found"]) == list(CASES)
    for name, (kind, text, ok) in facts["found"].items():
        assert kind == "AssertionError"
        assert not ok
        assert text.splitlines()[0] == CASES[name].headline
        assert "run again: " not in text
        assert all(wanted in text for wanted in CASES[name].texts)

"""What a team relies on: the same outcomes and reports on every supported version and install."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from importlib.metadata import distribution
from pathlib import Path, PurePath

import pytest

from . import project as files
from .conftest import EXPECTED_CHECKS, Run, checks

EXPECTED_INSTALL = "QTUNE_EXPECTED_INSTALL"
"""``kind``, ``folder`` and ``source`` of what ``python -m tests.compatibility`` installed, JSON."""
PACKAGES = ("qtune", "pytest_qtune")
MODES = {
    "two workers, beside pytest-html": (
        "-n2", "--dist=loadgroup", "--html=page.html", "--self-contained-html",
    ),
    "no xdist, no cache, importlib": (
        "-p", "no:xdist", "-p", "no:cacheprovider", "--import-mode=importlib", "-o", "pythonpath=.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_same_results_in_every_mode(run: Run, project: pytest.Pytester, mode: str) -> None:
    reports = ("--junitxml=junit.xml", "--qtune-html=run.html")
    result, data = run(*MODES[mode], *reports, "--qtune-update=new")
    result.assert_outcomes(**files.OUTCOMES)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert checks(data) == EXPECTED_CHECKS
    assert files.TOTALS.items() <= data["totals"].items()
    assert {gate["nodeid"]: gate["outcome"] for gate in data["gates"]} == files.GATES
    (entry,) = data["baselines"]
    assert (entry["key"], entry["name"]) == ("TestAccuracy.test_top1", "top1")
    assert "TestAccuracy.test_top1" in (project.path / entry["file"]).read_text()
    assert data["artefacts"]["built"] == files.ARTEFACTS
    assert kinds_in_junit(project.path / "junit.xml") == sorted(k for _, k, _ in EXPECTED_CHECKS)
    pages = [project.path / name for name in ("run.html", "page.html")]
    for page in pages[: 1 + ("--html=page.html" in MODES[mode])]:
        assert "test_too_strict" in page.read_text()
    result.stdout.fnmatch_lines(["*limit >= 500", "*run again: pytest --qtune*::test_too_strict"])


def kinds_in_junit(path: Path) -> list[str]:
    """The kinds of all checks, from the properties of test cases."""
    pairs = list(ET.parse(path).getroot().iter("property"))
    return sorted(str(pair.get("value")) for pair in pairs if pair.get("name") == "qtune.check")


def test_a_program_that_has_imported_qtune_may_call_pytest(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_a="def test_a(): pass")
    script = pytester.makepyfile(
        main="""
        import sys, pytest
        import pytest_qtune, qtune
        sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-W", "error"]))
        """
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(EXPECTED_INSTALL not in os.environ, reason="not run by -m tests.compatibility")
def test_what_is_tested_is_what_was_installed() -> None:
    import qtune

    expected = json.loads(os.environ[EXPECTED_INSTALL])
    assert Path(qtune.__file__).is_relative_to(expected["folder"])
    installed = distribution("qtune").files or ()
    listed = {str(file) for file in installed if file.parts[0] in PACKAGES and is_content(file)}
    if expected["kind"] == "editable":
        assert not listed  # only links
    else:
        source = Path(expected["source"])
        packages = [path for name in PACKAGES for path in (source / name).rglob("*")]
        whole = {str(path.relative_to(source)) for path in packages if path.is_file()}
        assert listed == {file for file in whole if is_content(Path(file))}
        others = {file.parts[0] for file in installed} - {*PACKAGES, ".."}  # .. is bin/qtune
        assert all(name.endswith(".dist-info") for name in others)  # no tests, no examples


def is_content(path: PurePath) -> bool:
    return "__pycache__" not in path.parts

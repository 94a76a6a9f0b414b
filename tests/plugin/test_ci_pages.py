"""The CI files of docs/how-to parse, agree, and their commands write what they publish."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

HOW_TO = Path(__file__).resolve().parents[2] / "docs" / "how-to"
PLUGIN_PAGE = HOW_TO.parent / "plugin.md"
GITHUB, GITLAB, JENKINS = (
    HOW_TO / f"ci-{name}.md" for name in ("github-actions", "gitlab", "jenkins")
)
INSTALL = [
    "python -m pip install torch --index-url https://download.pytorch.org/whl/cpu",
    "python -m pip install -r requirements.txt",
]
_TEXT = r"'''.*?'''|'[^'\n]*'|\"[^\"\n]*\""
CACHE = ".pytest_cache/d/qtune"


def blocks(page: Path, language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.M | re.S)
    return [text for kind, text in found if kind == language]


def yaml_of(page: Path) -> list[Any]:
    yaml = pytest.importorskip("yaml", reason="PyYAML is in the extra test")
    return [yaml.safe_load(text) for text in blocks(page, "yaml")]


def steps(workflow: Any) -> list[Any]:
    (job,) = workflow["jobs"].values()
    return list(job["steps"])


def test_the_workflows_of_github_are_whole() -> None:
    for workflow in yaml_of(GITHUB):
        assert workflow[True]  # YAML 1.1 reads "on" as true, GitHub does not
        (job,) = workflow["jobs"].values()
        assert {"runs-on", "timeout-minutes", "steps"} <= set(job)
        assert all(("uses" in step) != ("run" in step) for step in job["steps"])
        by_name = {step.get("name", ""): step for step in job["steps"]}
        assert by_name["Install"]["run"].splitlines() == INSTALL
        upload = next(s for s in job["steps"] if "upload-artifact" in s.get("uses", ""))
        assert upload["if"] == "always()"
        assert upload["with"]["path"] == "reports"


def test_the_cache_of_github_is_found_again() -> None:
    listed = steps(yaml_of(GITHUB)[0])
    restore, save = (
        next(s for s in listed if f"cache/{verb}@" in s.get("uses", ""))
        for verb in ("restore", "save")
    )
    assert restore["with"]["path"] == save["with"]["path"] == CACHE
    assert save["with"]["key"].startswith(restore["with"]["restore-keys"])
    assert listed.index(restore) < listed.index(save)


def test_the_job_of_gitlab_is_whole() -> None:
    (pipeline,) = yaml_of(GITLAB)
    job = pipeline["qtune"]
    assert job["stage"] in pipeline["stages"]
    assert job["before_script"] == INSTALL
    assert [cache["paths"] for cache in job["cache"]] == [[".cache/pip"], [CACHE]]
    assert job["artifacts"]["when"] == "always"


def test_the_pipeline_of_jenkins_is_closed_and_installs_the_same() -> None:
    whole, part = blocks(JENKINS, "groovy")
    for text in (whole, part):
        plain = re.sub(
            r"//.*", "", re.sub(r"'''.*?'''|'[^'\n]*'|\"[^\"\n]*\"", "''", text, flags=re.S)
        )
        open_: list[str] = []
        for mark in re.findall(r"[][(){}]", plain):
            if mark in "([{":
                open_.append(mark)
            else:
                assert open_.pop() + mark in ("()", "[]", "{}")
        assert not open_
    assert [line.strip() for line in whole.splitlines() if "pip install" in line] == INSTALL
    for section in ("agent", "stages", "post", "junit 'reports/junit.xml'", "publishHTML"):
        assert section in whole
    assert f"path: '{CACHE}'" in part


def test_the_command_of_all_pages_writes_what_they_publish(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [
        [shlex.split(line) for line in re.findall(r"python -m pytest ([^'\n]*)", page.read_text())]
        for page in (GITHUB, GITLAB, JENKINS)
    ]
    usual = found[0][0]
    assert found == [[usual, found[0][1]], [usual], [usual, usual]]
    assert set(found[0][1]) - {"--qtune-cache-clear"} < set(usual)
    for block in blocks(PLUGIN_PAGE, "python")[:2]:
        name, _, code = block.partition("\n")
        (pytester.path / name.removeprefix("# ")).write_text(code)
    monkeypatch.setenv("CI", "true")
    at = usual.index("-n")
    assert usual[at : at + 2] == ["-n", "auto"]
    result = pytester.runpytest(*usual[:at], *usual[at + 2 :])  # workers would load torch anew
    assert result.ret == 0
    written = {path.name for path in (pytester.path / "reports").iterdir()}
    assert written == {"junit.xml", "qtune.html", "qtune.json"}
    assert list((pytester.path / CACHE).glob("*/quantized.bc"))

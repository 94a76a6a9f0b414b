"""docs/**/*.md: what runs their code, that their commands and links exist, and the index."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_qtune import options
from qtune.cli.commands import COMMANDS

from .conftest import ROOT
from .test_readme import JOINED

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
FENCE = re.compile(r"^( *)```([^\n`]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
RUN_BY = {
    "cli.md": "tests/cli/test_page.py",
    "gate-files.md": "tests/plugin/test_gate_files_page.py",
    "getting-started.md": "tests/plugin/test_page_sessions.py",
    "how-to/build-an-onnx-model.md": "tests/onnx_debug/build/test_page.py",
    "how-to/baselines.md": "tests/plugin/test_baselines_page.py",
    "how-to/fuzz.md": "tests/testing/test_fuzz_pages.py",
    "how-to/move-from-the-toolchain.md": "tests/compat/test_page.py",
    "how-to/tune-a-model.md": "tests/plugin/test_page_sessions.py",
    "how-to/write-an-operator.md": "tests/testing/test_fuzz_pages.py",
    "plugin.md": "tests/plugin/test_docs.py",
    "reports.md": "tests/report/test_run_schema.py",
}
"""Pages whose python blocks another test runs than that of JOINED."""
SIGNATURES = ("reference/assertions.md", "reference/metrics.md")
"""Generated: their blocks are signatures, test_reference_pages.py compares them."""
KINDS = {"", "console", "groovy", "python", "sh", "text", "toml", "yaml"}
_LINK = re.compile(r"\]\((?!https?://)([^)#\s]*)(#[^)\s]*)?\)")


def name_of(page: Path) -> str:
    return page.relative_to(DOCS).as_posix()


def fences(page: Path) -> Iterator[tuple[str, str]]:
    for _, kind, text in FENCE.findall(page.read_text(encoding="utf-8")):
        if not kind.startswith("{"):
            yield kind, text


EACH = pytest.mark.parametrize("page", [pytest.param(p, id=name_of(p)) for p in PAGES])


@EACH
def test_the_python_blocks_of_a_page_run_somewhere(page: Path) -> None:
    name = name_of(page)
    if not any(kind == "python" for kind, _ in fences(page)) or name in SIGNATURES:
        assert name not in RUN_BY
        return
    assert (page in JOINED) != (name in RUN_BY), f"{name}: put it into JOINED or RUN_BY"
    if name in RUN_BY:
        assert Path(name).name in (ROOT / RUN_BY[name]).read_text()


@EACH
def test_a_block_names_its_language(page: Path) -> None:
    assert {kind for kind, _ in fences(page)} <= KINDS


def commands(page: Path) -> Iterator[list[str]]:
    """The command lines of qtune and pytest: all that a block or a code span begins with."""
    text = page.read_text(encoding="utf-8")
    outside = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.M | re.S)
    lines = re.findall(r"`((?:qtune|pytest) [^`\n]*)`", outside)
    for kind, block in fences(page):
        if kind in ("python", "toml"):
            continue
        lines += re.findall(r"(?:^|[\s'])((?:qtune|pytest) [^'\n]*)", block, re.M)
    for line in lines:
        if re.match(r"qtune [a-z][a-z-]+(?: |$)|pytest (?:-|\w)", line):
            yield shlex.split(line.replace("<", "").replace(">", ""), comments=True)


def flags_of_qtune(command: str) -> set[str]:
    parser = argparse.ArgumentParser()
    next(c for c in COMMANDS if c.name == command).add_arguments(parser)
    return set(parser._option_string_actions)


FLAGS = {"--qtune", *(option.flag_name for option in options.OPTIONS if option.flag)}


@EACH
def test_commands_have_only_options_that_exist(page: Path) -> None:
    for program, *words in commands(page):
        if program == "qtune":
            assert words[0] in {c.name for c in COMMANDS}, words
        known = flags_of_qtune(words[0]) if program == "qtune" else FLAGS
        for word in words:
            flag = word.partition("=")[0]
            if flag.startswith("-") and (program == "qtune" or flag.startswith("--qtune")):
                assert flag in known, f"{name_of(page)}: {program} {' '.join(words)}: {flag}"


@EACH
def test_options_of_the_plugin_in_the_text_exist(page: Path) -> None:
    found = set(re.findall(r"(?<![\w-])--qtune[\w-]*", page.read_text(encoding="utf-8")))
    assert found <= FLAGS | {"--qtune-"}
    keys = set(re.findall(r"`(qtune_\w+) ?=?`", page.read_text(encoding="utf-8")))
    ini = {option.ini_name for option in options.OPTIONS if option.ini}
    names = {"qtune_stages", "qtune_onnx_stages", "qtune_baseline", "qtune_slow"}
    files = {f"qtune_{c.name}" for c in COMMANDS}
    assert keys <= ini | names | files


@EACH
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for target, anchor in _LINK.findall(text):
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), f"{name_of(page)}: {target}"
        if anchor and path.suffix == ".md":
            assert anchor[1:] in anchors(path), f"{name_of(page)}: {target}{anchor}"


def anchors(page: Path) -> set[str]:
    """Those that GitHub and the site give to headings."""
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    titles = re.findall(r"^#{1,4} (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_index_has_every_page_once() -> None:
    listed: list[str] = []
    for tree in re.findall(r"```\{toctree\}\n(.*?)```", (DOCS / "index.md").read_text(), re.S):
        for entry in (line for line in tree.splitlines() if line and not line.startswith(":")):
            listed += [name_of(p) for p in DOCS.glob(f"{entry}.md")]
    assert sorted(listed) == [name_of(p) for p in PAGES if name_of(p) != "index.md"]


def test_the_readme_names_the_site_and_no_page_that_is_gone() -> None:
    for target in re.findall(r"\]\((docs/[^)#]+)", (ROOT / "README.md").read_text()):
        assert (ROOT / target).exists(), target

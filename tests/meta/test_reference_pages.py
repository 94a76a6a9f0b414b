"""docs/reference is what the code gives, and names everything that the code has."""

from __future__ import annotations

import argparse
import importlib.util
import re
from collections.abc import Iterator
from types import ModuleType

import pytest

import qtune.testing
from pytest_qtune import options
from qtune.cli.commands import COMMANDS
from qtune.profiler.metric import Metric

from .conftest import ROOT

NAMES = ("assertions.md", "commands.md", "metrics.md", "options.md")


@pytest.fixture(scope="module")
def reference() -> Iterator[ModuleType]:
    path = ROOT / "docs" / "reference_pages.py"
    spec = importlib.util.spec_from_file_location("docs_reference_pages", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(path.parent)  # as for a script, which finds its neighbours
        spec.loader.exec_module(module)
        yield module


@pytest.mark.parametrize("name", NAMES)
def test_committed_page_equals_the_generated_one(reference: ModuleType, name: str) -> None:
    path = ROOT / "docs" / "reference" / name
    assert path.read_text(encoding="utf-8") == reference.pages()[path], (
        "run python docs/reference_pages.py and commit the result"
    )


def test_there_is_no_other_page_of_the_script(reference: ModuleType) -> None:
    assert [path.name for path in reference.pages()] == list(NAMES)


def test_everything_in_testing_has_an_entry_with_all_its_arguments(reference: ModuleType) -> None:
    text = reference.assertions_page()
    assert sorted(re.findall(r"^## (\w+)$", text, re.M)) == sorted(qtune.testing.__all__)
    for argument in ("max_qscale_diff", "max_mismatches", "max_drop", "max_us"):
        assert f"    {argument}: " in text or f", {argument}: " in text


def test_every_built_in_metric_has_a_row_with_direction_and_unit(reference: ModuleType) -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.+?) \|", reference.metrics_page(), re.M)
    names = {info.name for info in reference.built_in_metrics()}
    assert {name for name, _, _ in rows} == names
    assert {"SQNR", "COSINE", "ATOL"} <= names
    for name, better, unit in rows:
        assert better == ("larger" if Metric.get_metric(name).ascending else "smaller")
        assert (unit == "dB") == Metric.get_metric(name).decibels


def test_the_options_are_those_of_the_plugin(reference: ModuleType) -> None:
    text = reference.options_page()
    assert options.markdown() in text
    assert "### qtune_stages\n\nReturn `build(factory" in text
    assert "`@pytest.mark.qtune(march=...)`" in text


def test_every_command_has_all_its_arguments(reference: ModuleType) -> None:
    text = reference.commands_page()
    assert re.findall(r"^## qtune ([\w-]+)$", text, re.M) == [c.name for c in COMMANDS]
    for command in COMMANDS:
        parser = argparse.ArgumentParser(add_help=False)
        command.add_arguments(parser)
        section = text.partition(f"\n## qtune {command.name}\n")[2].partition("\n## ")[0]
        assert section.count("\n| `") == len(parser._actions)
        for flag in parser._option_string_actions:
            assert re.search(rf"`[^`]*{flag}\b", section), flag


def test_no_markup_of_docstrings_is_left(reference: ModuleType) -> None:
    for path, text in reference.pages().items():
        prose = re.sub(r"```.*?```", "", text, flags=re.S)
        assert "``" not in prose, path
        assert ":func:" not in prose, path
        rows = [line for line in prose.splitlines() if line.startswith("|")]
        columns = {line.count("|") - line.count("\\|") for line in rows if "---" in line}
        assert columns, path

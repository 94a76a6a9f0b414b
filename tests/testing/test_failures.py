"""What every assertion says when it fails: each has a model that it refuses (see failing.py).

``tests/plugin/test_failures.py`` runs the same cases in pytest and in plain Python.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest

from qtune.testing import DirectoryStore, Stages
from qtune.testing.result import HEADLINE_COLUMNS, rerun_command

from .failing import CASES, Case, Models, assertions


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    store = DirectoryStore(tmp_path_factory.mktemp("failing"))
    return Models(partial(Stages, store=store))


def message(case: Case, models: Models) -> str:
    with pytest.raises(AssertionError) as caught:
        case.call(models)
    assert type(caught.value) is AssertionError
    result = caught.value.qtune_result
    assert not result
    assert result.headline == str(caught.value).splitlines()[0]
    return str(caught.value)


def names_of(lines: list[str]) -> list[str]:
    """The names in the indented lines below the first line that announces some."""
    start = next(i for i, line in enumerate(lines) if line.startswith("  "))
    end = next(i for i in range(start, len(lines)) if not lines[i].startswith("  "))
    return [named(line) for line in lines[start:end]]


def named(line: str) -> str:
    """The name at the beginning of a line about an operator, without its place in the code."""
    place = r"[\w.]+:\d+(?:, [\w.]+:\d+)*|\w+(?:;\w+)*"  # lines of code, or the nodes that read it
    found = re.match(rf"(.*?)(?: \((?:{place})\))?: ", line)
    assert found, line
    return found.group(1).strip()


def test_every_assertion_has_a_case() -> None:
    assert {name.partition(" ")[0] for name in CASES} == assertions()


@pytest.mark.parametrize("name", CASES)
def test_first_lines_say_where_what_was_found_and_what_was_allowed(
    models: Models, name: str
) -> None:
    lines = message(CASES[name], models).splitlines()
    assert lines[0] == CASES[name].headline
    assert len(lines[0]) <= HEADLINE_COLUMNS
    assert lines[1] == f"model: {CASES[name].model}"


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.worst])
def test_worst_five_come_in_their_order(models: Models, name: str) -> None:
    found = names_of(message(CASES[name], models).splitlines())
    assert found == list(CASES[name].worst)
    assert len(found) <= 5


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.first])
def test_first_bad_one_is_the_first_in_order_of_execution(models: Models, name: str) -> None:
    text = message(CASES[name], models)
    (line,) = re.findall(r"^first bad \w+ in order of execution: (.*)$", text, re.MULTILINE)
    assert named(line) == CASES[name].first
    assert f"  {line}\n" in text or name.startswith("assert_no_saturation codes")


@pytest.mark.parametrize("name", CASES)
def test_message_has_shares_scales_shapes_and_what_to_do(models: Models, name: str) -> None:
    text = message(CASES[name], models)
    for wanted in CASES[name].texts:
        assert wanted in text


@pytest.mark.parametrize("name", CASES)
def test_last_lines_name_the_artefact_and_the_command_to_run_again(
    models: Models, name: str
) -> None:
    lines = message(CASES[name], models).splitlines()
    assert lines[-1] == f"run again: {rerun_command()}"
    found = [line.removeprefix("artefact: ") for line in lines if line.startswith("artefact: ")]
    assert [Path(path).name for path in found] == [CASES[name].artefact] * bool(found)
    assert bool(found) == bool(CASES[name].artefact)
    assert all(Path(path).is_file() for path in found)

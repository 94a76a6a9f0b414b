"""What holds for every command: what loads, what is printed where, statuses, errors."""

from __future__ import annotations

import argparse
import logging
import os
import random
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

from qtune.analysis import pairs, quant_analysis, rankings
from qtune.cli import commands, main, options
from qtune.cli.compare import STAGES
from qtune.cli.main import parser

from .conftest import Run, call

ROOT = Path(__file__).resolve().parents[2]
WITHOUT_TORCH = """
import sys
from qtune.cli import main
for argv in (["--help"], ["--version"], *([name, "--help"] for name in sys.argv[1:]), ["check"]):
    main(argv)
heavy = {"torch", "numpy", "pandas", "onnx", "jinja2"} & set(sys.modules)
sys.exit(f"loaded: {heavy}" if heavy else 0)
"""


def test_help_of_every_command_loads_nothing_heavy() -> None:
    names = [command.name for command in commands.COMMANDS]
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, *names], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


def test_the_installed_script_is_main() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts["qtune"] == "qtune.cli:main"


def test_the_choices_are_those_of_the_tools() -> None:
    """They are written down again, because the tools load torch."""
    assert options.DEFAULT_DIR == quant_analysis.DEFAULT_DIR
    assert set(commands.ANALYSIS_TYPES) == set(STAGES)
    assert set(STAGES) <= set(pairs.ALLOWED)
    assert set(commands.METHODS) == set(rankings.TABLES)


def test_every_option_says_what_it_does() -> None:
    subparsers = [a for a in parser()._actions if isinstance(a, argparse._SubParsersAction)]
    actions = [a for sub in subparsers[0].choices.values() for a in sub._actions]
    assert actions
    assert not [a.option_strings for a in actions if not a.help]


def test_what_model_and_data_print_does_not_reach_stdout(run: Run) -> None:
    done = run(*call("check", "nets:make", "--json"))
    assert done.status == 0
    assert "the factory prints" in done.err
    assert done.json["model"] == "nets:make"


@pytest.mark.parametrize("json", [False, True])
def test_wrong_input_is_one_line_and_status_two(run: Run, json: bool) -> None:
    done = run(*call("check", "nets:mak", *(["--json"] if json else [])))
    assert done.status == 2
    assert done.err == "qtune check: MODEL: nets has no 'mak'; did you mean 'make'?\n"
    if json:
        assert done.json["error"]["type"] == "InputError"
        assert (done.json["ok"], done.json["exit_status"]) == (False, 2)
    else:
        assert done.out == ""


def test_wrong_usage_is_status_two(run: Run) -> None:
    assert run().status == 2
    assert run("check", "nets:make").status == 2  # neither --data nor --random
    assert run("tuna").status == 2


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            call("check", "m:n", "--fialon", "x"),
            "'--fialon'; did you mean --fail-on? (see",
        ),
        (call("check", "m:n", "--int17=a"), "unknown '--int17=a'; did you mean --int16? (see "),
        (call("check", "m:n", "more"), "qtune check: unknown 'more' (see qtune check --help)"),
        (call("compare", "m:n", "--max", "ATOL<1"), "--max: expected METRIC=VALUE such as ATOL=0"),
        (("chek", "m:n"), "qtune: no command 'chek'; did you mean check? (see qtune --help)"),
        (("watch",), "qtune: no command 'watch'; choose from check, compare, sensitivity, "),
        (("check", "m:n"), "qtune check: one of the arguments --data --random is required (see "),
    ],
)
def test_wrong_usage_is_one_line_with_what_is_near(
    run: Run, words: tuple[str, ...], line: str
) -> None:
    done = run(*words)
    assert (done.status, done.out, done.err.count("\n")) == (2, "", 1)
    assert line in done.err
    error = run(*words, "--json").json["error"]
    assert error["type"] == "UsageError"
    assert error["message"] in done.err


def test_the_traceback_comes_when_asked_for(run: Run) -> None:
    assert "Traceback" not in run(*call("check", "nets:mak")).err
    assert "Traceback" in run(*call("check", "nets:mak", "--traceback")).err
    assert "Traceback" in run(*call("check", "nets:mak", "-v")).err


def test_ctrl_c_is_status_130(run: Run, folder: Path) -> None:
    (folder / "slow.py").write_text("def make():\n    raise KeyboardInterrupt\n")
    done = run(*call("check", "slow:make"))
    assert (done.status, done.err) == (130, "qtune check: interrupted\n")
    assert run(*call("check", "slow:make", "--json")).json["exit_status"] == 130


def test_everything_outside_is_as_before(run: Run) -> None:
    def surroundings() -> list[object]:
        log = logging.getLogger("qtune")
        randomness = [random.getstate(), np.random.get_state()[1].tolist()]
        return [
            *randomness,
            torch.get_rng_state().tolist(),
            torch.get_num_threads(),
            sys.path[:],
            dict(os.environ),
            log.level,
            log.handlers[:],
            sys.stdout,
        ]

    before = surroundings()
    for model in ("nets:make", "nets:mak"):
        run(*call("check", model, "-q", "--threads", "2", "--seed", "3"))
    assert surroundings() == before


def test_quiet_and_verbose_decide_what_is_logged(run: Run, folder: Path) -> None:
    (folder / "odd.py").write_text(
        "import torch\ndef data():\n    return [torch.full((1, 3, 8, 8), float('inf'))] * 2\n"
    )
    words = call("check", "nets:make", data="odd:data")
    assert "NaN or infinite" in run(*words).err
    assert "NaN or infinite" not in run(*words, "-q").err


def test_a_reader_that_has_enough_is_no_error(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (folder / "closed").open("w") as file:

        class Closed:
            def write(self, text: str) -> None:
                raise BrokenPipeError

            def fileno(self) -> int:
                return file.fileno()

        monkeypatch.setattr(sys, "stdout", Closed())
        assert main(call("check", "nets:Shared")) == 1  # as without a reader


def test_main_reads_the_process_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["qtune", "--version"])
    assert main() == 0

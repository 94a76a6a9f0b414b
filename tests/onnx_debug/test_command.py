"""hmct-debugger: every option of the document's tables, help, exit statuses, real runs."""

from __future__ import annotations

import importlib
import inspect
import io
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qtune.onnx_debug import command
from qtune.onnx_debug.command_options import REQUIRED, SUBCOMMANDS, Subcommand

from . import nets

EACH = pytest.mark.parametrize("item", SUBCOMMANDS, ids=[item.name for item in SUBCOMMANDS])
NESTED = [["a"], ["a", "b"]]
OPTIONS = {
    "get-sensitivity-of-nodes": [
        ("-m ['cosine-similarity','mse']", "metrics", ["cosine-similarity", "mse"]),
        ("-m mse", "metrics", "mse"),
        ("-o Conv_2", "output_node", "Conv_2"),
        ("-n weight", "node_type", "weight"),
        ("-d 3", "data_num", 3),
        ("-d None", "data_num", None),
        ("-v True", "verbose", True),
        ("-v False", "verbose", False),
        ("-v", "verbose", True),
        ("-i [a,b]", "interested_nodes", ["a", "b"]),
        ("-s out", "save_dir", "out"),
    ],
    "plot-acc-error": [
        ("-q [a,b]", "quantize_node", ["a", "b"]),
        ("-q [[a],[a,b]]", "quantize_node", NESTED),
        ("-q ['weight','activation']", "quantize_node", ["weight", "activation"]),
        ("-nq [[a],[a,b]]", "non_quantize_node", NESTED),
        ("-m sqnr", "metric", "sqnr"),
        ("-a True", "average_mode", True),
        ("-a", "average_mode", True),
        ("-s out", "save_dir", "out"),
    ],
    "plot-distribution": [
        ("-n ['a','b']", "nodes_list", ["a", "b"]),
        ("-n a", "nodes_list", "a"),
        ("-s out", "save_dir", "out"),
    ],
    "get-channelwise-data-distribution": [
        ("-n [a]", "nodes_list", ["a"]),
        ("-a 2", "axis", 2),
        ("-a -1", "axis", -1),
        ("-a None", "axis", None),
        ("-s out", "save_dir", "out"),
    ],
    "sensitivity-analysis": [
        ("-m mse", "metric", "mse"),
        ("-p 0.9999", "pick_threshold", 0.9999),
        ("-d 2", "data_num", 2),
        ("-sn [a,b]", "sensitive_nodes", ["a", "b"]),
        ("-sn []", "sensitive_nodes", []),
        ("--qtype int16", "qtype", "int16"),
        ("--output_separated", "output_separated", True),
        ("-sd out", "save_dir", "out"),
        ("-s out", "save_dir", "out"),
    ],
    "tensor-analysis": [
        ("-n [a]", "node_names", ["a"]),
        ("-p 2", "num_processes", 2),
        ("-s out", "save_dir", "out"),
    ],
    "runall": [
        ("-s out", "save_dir", "out"),
        ("-nm [mse,sqnr]", "ns_metrics", ["mse", "sqnr"]),
        ("-o Conv_2", "output_node", "Conv_2"),
        ("-nt node", "node_type", "node"),
        ("-dn 2", "data_num", 2),
        ("-v True", "verbose", True),
        ("-i [a]", "interested_nodes", ["a"]),
        ("-dnl [a]", "dis_nodes_list", ["a"]),
        ("-cn [a]", "cw_nodes_list", ["a"]),
        ("-a 1", "axis", 1),
        ("-qn [[a],[a,b]]", "quantize_node", NESTED),
        ("-nqn [a,b]", "non_quantize_node", ["a", "b"]),
        ("-am mse", "ae_metric", "mse"),
        ("-avm True", "average_mode", True),
        ("-pt 0.5", "pick_threshold", 0.5),
        ("-sn [a]", "sensitive_nodes", ["a"]),
    ],
}
ROWS = [
    pytest.param(name, *row, id=f"{name} {row[0]}")
    for name, rows in OPTIONS.items()
    for row in rows
]


def needed(item: Subcommand) -> list[str]:
    return [word for o in item.options if o.default is REQUIRED for word in (o.short[0], "[a]")]


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    onnx.save(nets.residual(), tmp_path / "model.onnx")
    (tmp_path / "data" / "x").mkdir(parents=True)
    for index, item in enumerate(nets.data()):
        np.save(tmp_path / "data" / "x" / f"{index}.npy", item)
    return str(tmp_path / "model.onnx"), str(tmp_path / "data")


@pytest.mark.parametrize(("name", "typed", "parameter", "value"), ROWS)
def test_an_option_gives_the_parameter_its_value(
    name: str, typed: str, parameter: str, value: Any
) -> None:
    item = next(item for item in SUBCOMMANDS if item.name == name)
    words = typed.replace("'", "").split()
    before = command.read([name, "m", "d", *needed(item), *words])
    behind = command.read([name, *needed(item), *words, "m", "d"])
    for args in (before, behind):
        assert getattr(args, parameter) == value
        assert (args.model_or_file, getattr(args, item.data)) == ("m", "d")


@EACH
def test_every_option_has_a_row_and_a_long_form(item: Subcommand) -> None:
    typed = {(words.split()[0], parameter) for words, parameter, _ in OPTIONS[item.name]}
    assert typed == {
        (flag, option.name)
        for option in item.options
        for flag in option.short or (f"--{option.name}",)
    }
    for option in item.options:
        value = "True" if option.is_switch else "weight" if option.name == "node_type" else "1"
        value = "mse" if option.metavar == "METRIC" else value
        value = "int16" if option.name == "qtype" else value
        for flag in option.flags:
            args = command.read([item.name, "m", "d", *needed(item), flag, value])
            assert getattr(args, option.name) == option.read(value)


@EACH
def test_options_and_defaults_are_those_of_the_function(item: Subcommand) -> None:
    function = getattr(importlib.import_module(item.module), item.function)
    parameters = dict(inspect.signature(function).parameters)
    del parameters["model_or_file"], parameters[item.data]
    got = {
        option.name: inspect.Parameter.empty if option.default is REQUIRED else option.default
        for option in item.options
    }
    assert got == {name: parameter.default for name, parameter in parameters.items()}


@EACH
def test_help_says_every_option_and_loads_nothing_heavy(item: Subcommand) -> None:
    program = (
        "import sys; from qtune.onnx_debug.command import main; status = main(sys.argv[1:]);"
        "heavy = {'numpy', 'torch', 'onnx', 'onnxruntime', 'matplotlib', 'pandas'};"
        "sys.exit(status or sorted(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, item.name, "--help"],
        check=True,
        capture_output=True,
        text=True,
    )
    text = " ".join(done.stdout.split())
    for option in item.options:
        assert all(f"{flag} " in text for flag in option.flags)
        if option.default is not REQUIRED:
            assert f"(default: {option.default})" in text
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the following arguments are required: SUBCOMMAND"),
        (["plot"], "invalid choice: 'plot'"),
        (["plot-distribution", "m", "d"], "the following arguments are required: -n"),
        (["plot-distribution", "m", "d", "-n", "[a"], "the bracket [ is never closed"),
        (["plot-distribution", "m", "d", "-n", "[[a]]"], "nested too deep"),
        (["plot-distribution", "m", "d", "-n", "a", "-x"], "unrecognized arguments: -x"),
        (["plot-acc-error", "m", "d", "-q", "a", "b"], "b; if it is of a list, quote the list"),
        (["runall", "m", "d", "--metric", "mse"], "arguments: --metric; did you mean --ae-metric?"),
        (["runall", "m", "d", "-v", "yes"], "-v/--verbose: expected True or False, got 'yes'"),
        (["get-sensitivity-of-nodes", "m", "d", "-n", "conv"], "node, weight, activation"),
        (["get-sensitivity-of-nodes", "m", "d", "-d", "x"], "expected a whole number or None"),
        (["sensitivity-analysis", "m", "d", "-p", "x"], "expected a number"),
        (["plot-acc-error", "m", "d", "-m", "l1"], "expected one of cosine-similarity"),
    ],
)
def test_wrong_usage_is_status_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(words) == 2
    assert message in capsys.readouterr().err


def test_version_is_status_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("hmct-debugger ")


@pytest.mark.usefixtures("empty_pictures")
def test_pictures_are_written_and_named(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ["plot-distribution", *files, "-n", "['Conv_2','w1_HzCalibration']", "-s", str(out)]
    assert command.main(words) == 0
    names = sorted(path.name for path in out.iterdir())
    assert names == ["Conv_2_distribution.png", "w1_HzCalibration_distribution.png"]
    assert capsys.readouterr().out.splitlines() == [f"wrote {out / name}" for name in names]


def test_an_error_is_one_line_and_status_1(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, message in (
        (["plot-distribution", *files, "-n", "[Conv_3]"], "close matches: Conv_2"),
        (["tensor-analysis", str(tmp_path / "no.onnx"), files[1], "-n", "a"], "no.onnx"),
        (["plot-distribution", files[0], str(tmp_path / "none"), "-n", "a"], "none is no folder"),
        (["plot-acc-error", *files], ": give one of quantize_node and non_quantize_node; neither"),
        (["runall", *files, "-qn", "Conv_0", "-nqn", "Conv_0"], ": give only one of quantize_node"),
        (["runall", *files, "-s", files[0]], ": save_dir: "),
    ):
        assert command.main(words) == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith(f"hmct-debugger {words[0]}: ")
        rest = err.removeprefix(f"hmct-debugger {words[0]}: ")
        assert words[0].replace("-", "_") + ":" not in rest  # said once
        assert err.count("\n") == 1
        assert message in err


@pytest.mark.usefixtures("empty_pictures")
def test_the_logger_is_given_back(files: tuple[str, str], tmp_path: Path) -> None:
    log = logging.getLogger("qtune.onnx_debug")
    before = (log.level, list(log.handlers))
    command.main(["plot-distribution", *files, "-n", "Conv_2", "-s", str(tmp_path)])
    assert (log.level, log.handlers) == before


def test_a_reader_that_has_read_enough_is_no_error(
    files: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert command.main(["get-sensitivity-of-nodes", *files, "-v"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.usefixtures("empty_pictures")
@pytest.mark.parametrize("name", ["get-sensitivity-of-nodes -v", "plot-acc-error -q weight"])
def test_a_result_that_can_not_be_shown_is_an_error(
    name: str,
    files: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        words = [*name.split(), *files, "-s", str(tmp_path / "out")]
        assert command.main(words) == 1
    assert "No space left on device" in capsys.readouterr().err


def test_names_that_the_output_has_no_letters_for_are_escaped(
    files: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = onnx.load(files[0])
    next(node for node in model.graph.node if node.name == "Conv_2").name = "\u5377_2"
    onnx.save(model, files[0])
    with io.TextIOWrapper(io.BytesIO(), encoding="ascii") as out:
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(
            sys, "argv", ["hmct-debugger", "get-sensitivity-of-nodes", *files, "-v"]
        )
        assert command.main() == 0
        out.flush()
        assert b"\n\\u5377_2 " in out.buffer.getvalue()  # type: ignore[attr-defined]


def test_closed_streams_are_no_error(
    files: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    words = ["plot-distribution", *files, "-n", "Conv_2", "-s", str(tmp_path / "out")]
    assert command.main(words) == 0
    assert command.main([*words, "-n", "Conv_3"]) == 1


def test_interrupted_is_status_130(
    files: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "call", interrupt)
    assert command.main(["plot-distribution", *files, "-n", "Conv_2"]) == 130
    assert "interrupted" in capsys.readouterr().err


@EACH
def test_the_package_has_the_function_under_its_name(item: Subcommand) -> None:
    function = getattr(importlib.import_module(item.module), item.function)
    assert getattr(importlib.import_module("qtune.onnx_debug"), item.function) is function

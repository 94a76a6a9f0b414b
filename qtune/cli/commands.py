"""The commands: names, help and arguments. What they do is imported when one runs."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from qtune.cli import onnx_options, options

FINDINGS = ("unfused", "shared", "unused", "float", "march", "config")
"""What ``check`` counts."""
FAIL_ON = ("unfused", "shared", "unused", "march")
ANALYSIS_TYPES = ("fake_quant", "pre_export", "export", "convert")
METHODS = ("ablation", "grad_x_error")
STAGES = ("float", "calib", "pre_export", "qat_bc", "quantized_bc")
STAGE = "calib"
NOT_FINITE = "nonfinite"


@dataclass(frozen=True, slots=True)
class Command:
    """One command; ``module`` has its ``run(args) -> Outcome``."""

    name: str
    help: str
    description: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    module: str


def _check(parser: argparse.ArgumentParser) -> None:
    options.add_model(parser)
    options.add_data(parser)
    options.add_quantization(parser)
    parser.add_argument(
        "--fail-on",
        type=options.names_of(FINDINGS),
        default=FAIL_ON,
        metavar="KINDS",
        help="kinds of findings that fail, with commas: "
        f"{', '.join(FINDINGS)}, or none (default: {','.join(FAIL_ON)})",
    )
    options.add_output(parser, "writes model_check_result.txt and march_check.json")


def _compare(parser: argparse.ArgumentParser) -> None:
    options.add_model(parser, bc=True, other=True)
    options.add_data(parser)
    options.add_quantization(parser)
    parser.add_argument(
        "--type",
        choices=ANALYSIS_TYPES,
        default=ANALYSIS_TYPES[0],
        help="which stages: fake_quant compares the float with the calibrated model, pre_export "
        "and export each stage with the one before, convert the integer one with pre_export "
        "(default: fake_quant)",
    )
    options.add_search(parser)
    options.add_operators(parser)
    group = parser.add_argument_group(
        "gates", "on the outputs, over all cases; both may be given several times"
    )
    group.add_argument(
        "--max",
        action="append",
        default=[],
        type=options.bound,
        metavar="METRIC=VALUE",
        help="such as ATOL=0.1, L1=0.01",
    )
    group.add_argument(
        "--min",
        action="append",
        default=[],
        type=options.bound,
        metavar="METRIC=VALUE",
        help="such as COSINE=0.99, SQNR=20",
    )
    options.add_top(parser, "operators")
    options.add_output(parser, "folder of all tables and pages")


def _sensitivity(parser: argparse.ArgumentParser) -> None:
    options.add_model(parser)
    options.add_data(parser)
    options.add_quantization(parser)
    parser.add_argument(
        "--method",
        choices=METHODS,
        default=METHODS[0],
        help="ablation quantizes each port alone; grad_x_error multiplies gradient and error in "
        "one pass, and needs --loss (default: ablation)",
    )
    options.add_search(parser)
    options.add_operators(parser)
    parser.add_argument(
        "--output",
        action="append",
        metavar="NAME",
        help="only this output of the model; may be given several times",
    )
    group = parser.add_argument_group("gates")
    group.add_argument(
        "--max", type=float, metavar="VALUE", help="largest score of any one port in its own dtype"
    )
    group.add_argument(
        "--min", type=float, metavar="VALUE", help="the same for metrics of which larger is better"
    )
    group.add_argument(
        "--max-gain",
        type=float,
        metavar="VALUE",
        help="largest gain of any one port from qint16 over qint8",
    )
    options.add_top(parser, "ports")
    options.add_output(parser, "folder of all tables and pages")


def _profile(parser: argparse.ArgumentParser) -> None:
    options.add_model(parser, bc=True)
    options.add_data(parser)
    options.add_quantization(parser)
    parser.add_argument(
        "--stage",
        choices=STAGES,
        help=f"which stage of MODEL runs (default: {STAGE})",
    )
    parser.add_argument(
        "--case", type=options.natural, default=0, metavar="N", help="item to run (default: 0)"
    )
    options.add_operators(parser)
    parser.add_argument(
        "--stack", action="store_true", help="a column with the line of code that calls it"
    )
    parser.add_argument(
        "--tensorboard", action="store_true", help="also write a histogram of each tensor"
    )
    parser.add_argument(
        "--per-channel",
        action="store_true",
        help="with --tensorboard: one histogram for each channel too",
    )
    parser.add_argument(
        "--fail-on",
        type=options.names_of((NOT_FINITE,)),
        default=(),
        metavar="KINDS",
        help=f"{NOT_FINITE} fails where a tensor holds NaN or infinity (default: none)",
    )
    options.add_top(parser, "tensors")
    options.add_output(
        parser, "folder of statistic.txt and op_infos", f"{options.DEFAULT_DIR}/profile"
    )


def _tune(parser: argparse.ArgumentParser) -> None:
    options.add_model(parser)
    options.add_data(parser)
    options.add_quantization(parser)
    group = parser.add_argument_group("what is measured", "over all items of the data")
    group.add_argument(
        "--metric", metavar="NAME", help="between float and quantized outputs (default: L1)"
    )
    group.add_argument(
        "--loss",
        metavar="module:function",
        help="instead: a function of the two models' whole outputs, baseline first, smaller is "
        "better",
    )
    group.add_argument(
        "--score",
        metavar="module:function",
        help="instead: a function of the calibrated model, such as its accuracy on labelled data; "
        "larger is better",
    )
    group.add_argument("--output", metavar="NAME", help="of several outputs of the model")
    group = parser.add_argument_group("budget", "how much more than int8 it may cost")
    group.add_argument(
        "--int16-macs",
        type=float,
        metavar="SHARE",
        help="share (0 to 1) of the multiply-adds that may have an int16 operand",
    )
    group.add_argument(
        "--latency",
        type=options.latency,
        metavar="TIME",
        help="by the static estimate: 1.2x the model as it is, or microseconds",
    )
    group.add_argument(
        "--stubs", type=options.natural, metavar="N", help="ports that may be raised"
    )
    group.add_argument(
        "--skip",
        action="append",
        default=[],
        metavar="PREFIX",
        help="leave operators alone whose name begins so; may be given several times",
    )
    group.add_argument(
        "--evaluations",
        type=options.positive,
        default=40,
        metavar="N",
        help="most runs over the data (default: 40)",
    )
    group = parser.add_argument_group("gates")
    group.add_argument(
        "--target",
        type=options.bound,
        metavar="METRIC=VALUE",
        help="take the cheapest point that reaches it; fail if none does within the budget",
    )
    options.add_output(parser, "folder of the front and of the dtypes")


def _init(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="module:factory or path/to/file.py:factory, a callable that returns the float model, "
        "or a model; or an .onnx file",
    )
    group = parser.add_argument_group(
        "data", "each module:name, data or a callable; of an .onnx file also a folder"
    )
    group.add_argument(
        "--calibration",
        "--data",
        required=True,
        metavar="SOURCE",
        help="what the model is calibrated with; what an .onnx file runs on that is calibrated",
    )
    group.add_argument(
        "--inputs",
        metavar="SOURCE",
        help="what the checks run on; held out, if possible (default: --calibration)",
    )
    group.add_argument(
        "--evaluate",
        metavar="module:function",
        help="a function of a model that returns a number, such as its accuracy; larger is better",
    )
    options.add_setting(parser)
    group = parser.add_argument_group("output")
    group.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="the gate file (default: the name of MODEL with .qtune.toml)",
    )
    group.add_argument("--force", action="store_true", help="overwrite the file")
    options.add_messages_to(group)


def _gate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", metavar="FILE", nargs="+", help="*.qtune.toml")
    group = parser.add_argument_group("run")
    group.add_argument(
        "--march",
        metavar="NAME",
        help=f"for files that name none (default: ${options.MARCH_VARIABLE})",
    )
    group.add_argument(
        "--threads", type=options.positive, metavar="N", help="threads of torch (default: torch's)"
    )
    group.add_argument(
        "--no-cache",
        action="store_true",
        help="build all stages again; else those of an unchanged model are read from "
        "$QTUNE_CACHE_DIR (default: qtune/artefacts in the user's cache folder)",
    )
    group = parser.add_argument_group("baselines", "of checks of the kind baseline")
    group.add_argument(
        "--update",
        nargs="?",
        const="all",
        metavar="WHICH",
        help="write them: new, all (if no value is given), or a glob of check and metric names",
    )
    group.add_argument("--update-in-ci", action="store_true", help="also where CI is set")
    options.add_messages(parser)


def _report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder",
        nargs="?",
        default=options.DEFAULT_DIR,
        metavar="DIR",
        help=f"what the other commands wrote (default: {options.DEFAULT_DIR})",
    )
    parser.add_argument("--title", default="Quantization report", help="title of the page")
    options.add_messages(parser)


def _compat_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "scripts",
        metavar="SCRIPT",
        nargs="+",
        help="a Python file, or a folder of them; nothing is run",
    )
    options.add_messages(parser)


COMMANDS = (
    Command(
        "check",
        "is the model's structure fit for quantization, and does the march run all of it?",
        "Prepare and calibrate the model; look for patterns left unfused, shared and unused\n"
        "modules, operators that stay float, limits of the march, and odd configurations.",
        _check,
        "qtune.cli.check",
    ),
    Command(
        "compare",
        "how far apart are two stages of the model, and where do they part?",
        "Find the inputs on which two stages of the model differ most, and compare them there\n"
        "operator by operator. MODEL and OTHER may be two .bc files.",
        _compare,
        "qtune.cli.compare",
    ),
    Command(
        "sensitivity",
        "which fake-quantize costs how much, and what would int16 gain?",
        "Quantize each port of the model alone, in several ways, and rank them.",
        _sensitivity,
        "qtune.cli.sensitivity",
    ),
    Command(
        "profile",
        "range, mean, variance and scale of every operator's tensors",
        "Run one item through one stage of the model, or through a .bc file, and write the\n"
        "numbers of every operator.",
        _profile,
        "qtune.cli.profile",
    ),
    Command(
        "tune",
        "which ports to raise to int16 within a budget?",
        "Search the ports to raise to int16, measured over all the data; print the Pareto front\n"
        "and write the dtypes of the best point, for --dtypes and LoadFromFileTemplate.",
        _tune,
        "qtune.cli.tune",
    ),
    Command(
        "init",
        "a first gate file for the model, with limits that hold now",
        "Measure the model in all its stages and write a gate file, *.qtune.toml, whose limits it\n"
        "keeps as it is; `qtune gate` and pytest run it.",
        _init,
        "qtune.cli.init",
    ),
    Command(
        "gate",
        "does the model keep the limits of its gate file?",
        "Run the checks of gate files, *.qtune.toml (docs/gate-files.md).",
        _gate,
        "qtune.cli.gate",
    ),
    Command(
        "report",
        "one HTML page over what the other commands wrote",
        "Gather what lies in a folder of analysis results in one page, index.html.",
        _report,
        "qtune.cli.report",
    ),
    Command(
        "onnx",
        "from a float ONNX file to a calibrated and an integer model",
        "Calibrate a float ONNX model, convert it for the march and write all stages; the\n"
        "debugger (qtune-onnx-debugger) takes the calibrated one.",
        onnx_options.add_arguments,
        "qtune.cli.onnx",
    ),
    Command(
        "compat-report",
        "which names of the toolchain does a script use, and are they all here?",
        "Read scripts of the toolchain and look up every name that they take from it; a name that\n"
        "qtune lacks fails, with what stands nearest. `python -m qtune.compat SCRIPT` runs one.",
        _compat_report,
        "qtune.cli.compat_report",
    ),
)

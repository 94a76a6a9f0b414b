"""The commands: names, help and arguments. What they do is imported when one runs."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from qtune.cli import options

FINDINGS = ("unfused", "shared", "unused", "float", "march", "config")
"""What ``check`` counts."""
FAIL_ON = ("unfused", "shared", "unused", "march")
ANALYSIS_TYPES = ("fake_quant", "pre_export", "export", "convert")
METHODS = ("ablation", "grad_x_error")


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
    options.add_model(parser, other=True)
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
)

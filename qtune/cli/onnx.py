"""``qtune onnx``: from a float ONNX file to a calibrated and an integer model."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qtune.cli.options import MARCH_VARIABLE
from qtune.cli.outcome import Gate, InputError, Outcome
from qtune.onnx_debug.build.arguments import DEFAULT_MARCH
from qtune.onnx_debug.build.model import build_model
from qtune.onnx_debug.build.result import BuildResult
from qtune.onnx_debug.build.toolchain_file import read_toolchain_file

_OF_BUILD = ("cali_data", "name_prefix", "debug_methods")
"""What ``check`` has no use for."""


def run(args: argparse.Namespace) -> Outcome:
    """Build, or check on random data, the model that the options name."""
    _check_options(args)
    given, ignored = _arguments(args)
    if args.action == "check":
        given = {key: value for key, value in given.items() if key not in _OF_BUILD}
    is_check = args.action == "check"
    result = build_model(**given, verbose=False, return_builder=True, check_mode=is_check)
    return _outcome(args, given, result, ignored)


def _check_options(args: argparse.Namespace) -> None:
    """What only a build looks at is no option of check; MODEL is a file."""
    unused = {
        "--data": args.data,
        "--out": args.out,
        "--dump-calibration-data": args.dump_calibration_data or None,
    }
    for name, value in unused.items():
        if args.action == "check" and value is not None:
            raise InputError(f"{name}: check takes random data and writes nothing; leave it out")
    if args.model is not None and not Path(args.model).is_file():
        raise InputError(f"MODEL: there is no file {args.model}")


def _arguments(args: argparse.Namespace) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Arguments of ``build_model``; an option wins over the same key of ``--config``."""
    found: dict[str, Any] = {}
    ignored: tuple[str, ...] = ()
    if args.config is not None:
        file = read_toolchain_file(args.config)
        found, ignored = dict(file.arguments), file.ignored
    shapes = dict(args.input_shape)
    options = {
        "onnx_model": args.model,
        "cali_data": args.data,
        "march": args.march,
        "name_prefix": args.out,
        "quant_config": args.quant_config,
        "output_nodes": args.output_node or None,
        "input_dict": shapes or None,
        "debug_methods": "dump_calibration_data" if args.dump_calibration_data else None,
    }
    found |= {key: value for key, value in options.items() if value is not None}
    if "onnx_model" not in found:
        raise InputError("MODEL: give the path of the ONNX file, or --config")
    given = (args.config, args.data, args.quant_config)
    if args.action == "build" and given == (None, None, None):
        raise InputError(
            "--data: give the folder of the calibration data, <input>/<i>.npy; qtune onnx check "
            "takes random data and says what the march runs"
        )
    found.setdefault("march", os.environ.get(MARCH_VARIABLE) or DEFAULT_MARCH)
    found.setdefault("name_prefix", Path(found["onnx_model"]).stem)
    return found, ignored


def _outcome(
    args: argparse.Namespace,
    given: Mapping[str, Any],
    result: BuildResult,
    ignored: tuple[str, ...],
) -> Outcome:
    facts = {"model": str(given["onnx_model"]), "march": str(result.march)}
    gates = []
    if args.min_cosine is not None:
        for name, row in result.info["outputs"].items():
            value = row["quantized"]
            gates.append(
                Gate(
                    "--min-cosine",
                    value >= args.min_cosine,
                    value,
                    f">= {args.min_cosine:g}",
                    {"output": name},
                )
            )
    info = {**result.info, "ignored": list(ignored)}
    return Outcome(facts, info, result.summary(with_files=False), gates, result.files)

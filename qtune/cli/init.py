"""``qtune init``: a first gate file, with limits that hold for the model as it is now."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qtune.cli.first_checks import Entry, first_checks, metric_name
from qtune.cli.models import is_onnx, march_of, torch_threads
from qtune.cli.outcome import InputError, Outcome
from qtune.report.files import check_folder, write_text
from qtune.testing.gatefile import SUFFIX, GateFile, GateFileError, ModelTable
from qtune.testing.gatefile.run import Settings, gate_run
from qtune.testing.gatefile.toml import assignment
from qtune.testing.onnx_model import FLOAT, OnnxModel

_OPTIONS = {
    "factory": "MODEL",
    "onnx": "MODEL",
    "calibration": "--calibration",
    "inputs": "--inputs",
    "evaluate": "--evaluate",
    "qconfig": "--qconfig",
}
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_]+")
HEAD = """\
# The gates of {model}; docs/gate-files.md describes every key.
# The limits are what qtune init measured, and a margin: tighten them where you can.
"""
TAIL = """\
# Exactly these numbers, instead of limits? `qtune gate {file} --update=new` stores them:
#
# [[check]]
# kind = "baseline"
# metrics = {metrics}
# max_drop = 0.5
"""


def run(args: argparse.Namespace) -> Outcome:
    """Measure the model and write the file."""
    target = Path(args.output or _default_name(args.model))
    _check_target(target, force=args.force)
    march = march_of(args.march).value
    table = _table(args, target.absolute().parent, march)
    file = GateFile(target.absolute(), str(target), table, (), {})
    gates = gate_run(file, Path.cwd(), Settings())
    try:
        with torch_threads(args.threads), gates.active():
            # what can't be prepared is said at once
            _ = gates.subject.stage("calib" if table.onnx is None else "calibrated")
            entries = list(first_checks(gates))
    except GateFileError as error:
        raise InputError(_of_options(str(error))) from error
    write_text(target, _content(target, table, entries, own_inputs=args.inputs is not None))
    facts = {"model": args.model, "march": march, "calibration": args.calibration}
    commands = [f"qtune gate {target}", f"pytest --qtune {target}"]
    result = {"checks": [entry.to_dict() for entry in entries], "next": commands}
    lines = [f"{entry.kind}: {entry.comment}" for entry in entries]
    text = "\n".join(["Measured:", *(f"  {line}" for line in lines)])
    return Outcome(facts, result, f"{text}\n\nnext: {' or '.join(commands)}", (), [target])


def _default_name(model: str) -> str:
    """``my_models:resnet18`` and ``resnet18.onnx`` as ``resnet18.qtune.toml``."""
    stem = Path(model).stem if is_onnx(model) else model.rpartition(":")[2]
    name = _NOT_IN_NAMES.sub("_", stem).strip("_").lower()
    return f"{name or 'model'}{SUFFIX}"


def _check_target(target: Path, *, force: bool) -> None:
    if not target.name.endswith(SUFFIX):
        raise InputError(f"--output: {target} must end with {SUFFIX}, or pytest does not find it")
    check_folder(target.absolute().parent, "--output", InputError)
    if target.exists() and not force:
        raise InputError(f"{target} is there already; give --force, or another name with --output")


def _table(args: argparse.Namespace, folder: Path, march: str) -> ModelTable:
    """``[model]``; files are named from the folder of the gate file."""
    inputs = args.inputs or args.calibration
    if is_onnx(args.model):
        return _onnx_table(args, folder, march)
    given = {
        "factory": args.model,
        "calibration": args.calibration,
        "inputs": inputs,
        "evaluate": args.evaluate,
        "qconfig": args.qconfig,
    }
    for key, spec in given.items():
        if spec is not None and ":" not in spec:
            option = _OPTIONS[key]
            raise InputError(f"{option}: expected module:name, such as nets:make, but got {spec!r}")
    specs: dict[str, Any] = {
        key: _from(spec, folder) for key, spec in given.items() if spec is not None
    }
    return ModelTable(march=march, **specs)


def _onnx_table(args: argparse.Namespace, folder: Path, march: str) -> ModelTable:
    """The same of an ONNX file; one that is calibrated needs no calibration data."""
    if args.qconfig is not None:
        raise InputError("--qconfig: it is for models in torch; give quant_config in the gate file")
    if not Path(args.model).is_file():
        raise InputError(f"MODEL: there is no file {args.model}")
    is_float = OnnxModel(Path(args.model)).kind == FLOAT
    given = {
        "onnx": args.model,
        "calibration": args.calibration if is_float else None,
        "inputs": args.inputs or args.calibration,
        "evaluate": args.evaluate,
    }
    specs: dict[str, Any] = {
        key: _place(spec, folder) for key, spec in given.items() if spec is not None
    }
    return ModelTable(march=march, **specs)


def _place(spec: str, folder: Path) -> str:
    """``spec``; a file or folder as it is named from ``folder``."""
    path = Path(spec).absolute()
    if not path.exists():
        return _from(spec, folder)
    return (path.relative_to(folder) if path.is_relative_to(folder) else path).as_posix()


def _from(spec: str, folder: Path) -> str:
    """``spec``; the path of a Python file as it is named from ``folder``."""
    where, _, name = spec.rpartition(":")
    if not where.endswith(".py"):
        return spec
    path = Path(where).absolute()
    shown = path.relative_to(folder) if path.is_relative_to(folder) else path
    return f"{shown.as_posix()}:{name}"


def _of_options(message: str) -> str:
    """A message about a key of ``[model]`` as one about the option that it comes from."""
    text = re.sub(r"^.*?:\d+: (\[model\]: )?", "", message)
    key = text.partition(":")[0]
    return f"{_OPTIONS[key]}{text.removeprefix(key)}" if key in _OPTIONS else text


def _content(target: Path, table: ModelTable, entries: list[Entry], *, own_inputs: bool) -> str:
    metrics = ["cosine", "sqnr_db"]
    if table.evaluate is not None:
        metrics.append(metric_name(table.evaluate))
    parts = [
        HEAD.format(model=table.factory or table.onnx)
        + "\n".join(_model_lines(table, own_inputs=own_inputs)),
        *("\n".join(entry.lines()) for entry in entries),
        TAIL.format(file=target.name, metrics=str(metrics).replace("'", '"')).rstrip("\n"),
    ]
    return "\n\n".join(parts) + "\n"


def _model_lines(table: ModelTable, *, own_inputs: bool) -> Iterator[str]:
    yield "[model]"
    for key in ("factory", "onnx", "march", "calibration", "inputs", "evaluate", "qconfig"):
        value = getattr(table, key)
        if value is None:
            continue
        if key == "inputs" and not own_inputs:
            yield "# the calibration data themselves; held-out data say more"
        yield assignment(key, value)

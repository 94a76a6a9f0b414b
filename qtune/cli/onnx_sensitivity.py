"""``qtune sensitivity`` of a calibrated ONNX file: the debugger's ranking, with gates."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from qtune.cli.metrics import limit
from qtune.cli.models import BC_REFUSES, data_of, torch_threads
from qtune.cli.outcome import Gate, InputError, Outcome
from qtune.errors import ArgumentError
from qtune.onnx_debug.calibrated import ACTIVATION, WEIGHT
from qtune.onnx_debug.metrics import DEFAULT, metric
from qtune.onnx_debug.runner import Runner
from qtune.onnx_debug.sensitivity import FOLDER, get_sensitivity_of_nodes
from qtune.report.table import text_table
from qtune.testing.onnx_model import CALIBRATED, OnnxModel
from qtune.testing.running import debug_data

_REFUSED = (*BC_REFUSES, "loss", "output", "max_gain", "prefix", "op_type")
"""Options about models in torch."""


def rank_calibration_nodes(args: argparse.Namespace) -> Outcome:
    """Rank the calibration nodes of the file ``args.model``, weights and activations."""
    _check_options(args)
    model = _model(args.model)
    try:
        chosen = metric(args.metric or DEFAULT, "--metric")
    except ArgumentError as error:
        raise InputError(str(error)) from None
    with torch_threads(args.threads):
        source = data_of(args)[0]
        data = debug_data(model, source.all_calls(model.hbir))
        runner, folder = Runner(model.calibrated, data), Path(args.out_dir)
        folder.mkdir(parents=True, exist_ok=True)
        rows = list(_rows(runner, chosen.name, folder))
    rows.sort(key=lambda row: chosen.badness(row[chosen.name]), reverse=True)
    gates = [_gate(chosen, rows, *given) for given in _given(args)]
    facts = {"model": args.model, "data": source.text, "metric": chosen.name, "items": len(data)}
    shown = rows[: args.top]
    text = f"Calibration nodes, the worst first ({len(shown)} of {len(rows)}):\n" + text_table(
        shown, ("node", "feeds", "threshold", "bit", chosen.name)
    )
    files = [folder / FOLDER / f"sensitivity_of_{kind}.log" for kind in (WEIGHT, ACTIVATION)]
    written = [path for path in files if path.is_file()]
    return Outcome(facts, {"metric": chosen.name, "nodes": rows}, text, gates, written)


def _model(path: str) -> OnnxModel:
    if not Path(path).is_file():
        raise InputError(f"MODEL: there is no file {path}")
    model = OnnxModel(Path(path))
    if model.kind != CALIBRATED:
        raise InputError(
            f"MODEL: {path} is a float model, in which nothing is quantized; calibrate it with "
            "qtune onnx build, and give its *_calibrated_model.onnx"
        )
    return model


def _check_options(args: argparse.Namespace) -> None:
    given = [name for name in _REFUSED if getattr(args, name) not in (None, [])]
    if given:
        option = "--" + given[0].replace("_", "-")
        raise InputError(f"{option}: a calibrated ONNX file is taken as it is; leave it out")
    if args.method != "ablation":
        raise InputError("--method: of ONNX files each calibration node is measured by ablation")


def _rows(runner: Runner, name: str, folder: Path) -> Iterator[dict[str, Any]]:
    for kind in (WEIGHT, ACTIVATION):
        if not runner.model.names(kind):
            continue
        found = get_sensitivity_of_nodes(
            runner.model, name, runner, node_type=kind, data_num=None, save_dir=folder
        )
        for node, values in found.items():
            item = runner.model.calibrations[node]
            yield {
                "node": node,
                "feeds": ";".join(item.users),
                "threshold": item.threshold,
                "bit": item.bits,
                name: values[name],
            }


def _given(args: argparse.Namespace) -> Iterator[tuple[str, bool, float]]:
    for option, ascending, value in (("--max", False, args.max), ("--min", True, args.min)):
        if value is not None:
            yield option, ascending, value


def _gate(
    chosen: Any,
    rows: Sequence[Mapping[str, Any]],
    option: str,
    ascending: bool,
    value: float,
) -> Gate:
    """A limit against the worst node."""
    bound = limit(option, chosen.info, value, ascending=ascending)
    worst = rows[0]
    got = worst[chosen.name]
    return Gate(bound.key, bound.holds(got), got, str(bound), {"node": worst["node"]})

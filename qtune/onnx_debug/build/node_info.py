"""``node_info.csv``: every node with where it runs, its threshold, and what it loses.

Columns as the toolchain has them (toolchain_facts 9.1). ``ON``: ``BPU``, or ``CPU`` for operators
that run in float; the toolchain's third value, ``JIT``, does not occur, there is no such unit here.
An operator that joined a fused group runs where the group runs; it has no result of its own, so
its quantized cosine and its data type are ``--``, as a threshold is where nothing is calibrated.
"""

from __future__ import annotations

import csv
import io
import logging
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from qtune.bpu.advice import CPU, is_border
from qtune.bpu.convert import advice_items
from qtune.hbir.builder import META_GROUP, META_OP, META_REASON
from qtune.hbir.module import HbirModule
from qtune.hbir.result import OpResult
from qtune.onnx_debug.build.loss import score
from qtune.onnx_debug.calibrated import CalibratedModel
from qtune.onnx_debug.data import CalibrationDataSet
from qtune.onnx_debug.metrics import DEFAULT
from qtune.onnx_debug.runner import Runner

COLUMNS = (
    "Node",
    "NodeType",
    "ON",
    "Threshold",
    "Calibrated Cosine",
    "Quantized Cosine",
    "Output Data Type",
)
ITEMS = 4
"""Most items that the cosines are averaged over."""
OBVIOUS_LOSS = 0.8
"""An output whose cosine is below this is warned of."""
_NONE = "--"
_TYPES = {"qint8": "si8", "qint16": "si16", "qint32": "si32", "torch.float32": "f32"}
_log = logging.getLogger(__name__)
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """One row. ``threshold``: that of its first calibrated input; ``None`` where there is none."""

    node: str
    node_type: str
    on: str
    threshold: float | None
    calibrated_cosine: float | None
    quantized_cosine: float | None
    output_type: str

    def cells(self) -> tuple[str, ...]:
        """The row as texts."""
        return (
            self.node,
            self.node_type,
            self.on,
            _text(self.threshold),
            _text(self.calibrated_cosine),
            _text(self.quantized_cosine),
            self.output_type,
        )


def node_infos(
    model: CalibratedModel, qat: HbirModule, quantized: HbirModule, data: CalibrationDataSet
) -> list[NodeInfo]:
    """A row for every ordinary node of the calibrated model, in its order."""
    places = _with_joined(model, _places(qat, quantized))
    calibrated: dict[str, list[float]] = defaultdict(list)
    integer: dict[str, list[float]] = defaultdict(list)
    types: dict[str, str] = {}
    runner = Runner(model, data)
    for index in range(min(ITEMS, len(data))):
        _compare(runner, quantized, index, calibrated, integer, types)
    return [
        NodeInfo(
            node.name,
            node.op_type,
            places.get(node.name, _NONE),
            _threshold(model, node.calibrations),
            _mean(calibrated.get(node.name)),
            _mean(integer.get(node.name)),
            types.get(node.name, _NONE),
        )
        for node in model.nodes
    ]


def table(infos: Iterable[NodeInfo]) -> str:
    """The rows as CSV with a header."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(info.cells() for info in infos)
    return stream.getvalue()


def output_cosines(
    model: CalibratedModel, quantized: HbirModule, data: CalibrationDataSet
) -> dict[str, dict[str, float]]:
    """Cosine of each float output, of the calibrated and of the integer model; warns below 0.8."""
    runner = Runner(model, data)
    sums: dict[tuple[str, str], list[float]] = defaultdict(list)
    for index in range(min(ITEMS, len(data))):
        given = runner.values(index)
        floats = [name for name, array in given.items() if array.dtype.kind == "f"]
        calibrated = runner.values(index, model.calibrations)
        # by place: an output that is an input of the model has another name in the module
        integers = quantized[0].feed(data[index]).values()
        quantized_values = dict(zip(given, integers, strict=True))
        for stage, got in (("calibrated", calibrated), ("quantized", quantized_values)):
            for name in floats:
                sums[name, stage].append(score(DEFAULT, given[name], got[name]))
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for (name, stage), values in sums.items():
        value = found[name][stage] = float(np.mean(values))
        if not value >= OBVIOUS_LOSS:
            text = (
                "output %s: the cosine similarity of the %s model is %.4f, below %.1f: the accuracy"
            )
            _log.warning(f"{text} is obviously lost", name, stage, value, OBVIOUS_LOSS)
    return dict(found)


def _compare(
    runner: Runner,
    quantized: HbirModule,
    index: int,
    calibrated: dict[str, list[float]],
    integer: dict[str, list[float]],
    types: dict[str, str],
) -> None:
    """Add the cosines of one item: integers are held, float and calibrated values streamed."""
    results: dict[str, Array] = {}

    def note(name: str, result: OpResult) -> None:
        results[name] = result.values.numpy().copy()
        types[name] = _TYPES.get(result.dtype, result.dtype.removeprefix("torch."))

    model = runner.model
    quantized[0].run(runner.data[index], observe=note)
    makers = {node.outputs[0]: node.name for node in model.nodes if node.outputs}
    wanted = list(makers)
    for tensor, given, got in runner.stream(index, model.calibrations, wanted):
        if given.dtype.kind != "f" or not given.size:
            continue
        name = makers[tensor]
        calibrated[name].append(score(DEFAULT, given, got))
        if name in results and results[name].shape == given.shape:
            integer[name].append(score(DEFAULT, given, results.pop(name)))


def _places(qat: HbirModule, quantized: HbirModule) -> dict[str, str]:
    """Node -> BPU or CPU."""
    found: dict[str, str] = {}
    for item in advice_items(quantized):
        if not is_border(item["op"]) and found.get(item["loc"]) != "CPU":
            found[item["loc"]] = "CPU" if item["backend"] == CPU else "BPU"
    for node in qat.model.graph:
        props = node.metadata_props
        group = found.get(props.get(META_GROUP, ""))
        if META_OP in props and group is not None:
            found.setdefault(props[META_OP], group)
        if META_REASON in props:  # the file keeps it float
            found[props[META_OP]] = "CPU"
    return found


def _with_joined(model: CalibratedModel, places: dict[str, str]) -> dict[str, str]:
    """Nodes that the import put into the one behind them (a bias, a table) run where that runs."""
    readers: dict[str, list[str]] = defaultdict(list)
    for node in model.nodes:
        for name in node.inputs:
            readers[name].append(node.name)
    found = dict(places)
    for node in reversed(model.nodes):
        users = readers[node.outputs[0]] if node.outputs else []
        if node.name not in found and len(users) == 1 and users[0] in found:
            found[node.name] = found[users[0]]
    return found


def _threshold(model: CalibratedModel, names: tuple[str, ...]) -> float | None:
    first = next((n for n in names if model.calibrations[n].kind == "activation"), None)
    return None if first is None else model.calibrations[first].threshold


def _mean(values: list[float] | None) -> float | None:
    known = [value for value in values or () if not math.isnan(value)]
    if values and not known:
        return math.nan
    return sum(known) / len(known) if known else None


def _text(value: float | None) -> str:
    return _NONE if value is None else f"{value:.6g}"

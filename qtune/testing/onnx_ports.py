"""The calibration nodes of an ONNX model under the names that arguments of assertions use.

A calibration node has its own name (``r_HzCalibration``). It also is a port of ordinary nodes:
``"Conv_2 weight"``, ``"Conv_2 input-0"`` (``"Conv_2 input"``: every operand), and ``"Relu_1
output"`` of the node that makes the tensor; ``"Conv_2"`` alone means all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from qtune.onnx_debug.calibrated import WEIGHT, CalibratedModel, CalibrationNode
from qtune.testing.names import Port, ports_of

V = TypeVar("V")
OUTPUT, INPUT = "output", "input"


def calibration_ports(model: CalibratedModel) -> dict[Port, str]:
    """(node, kind) -> calibration node, those of the calibration nodes themselves first."""
    found = {(item.name, _kind(item)): item.name for item in model.calibrations.values()}
    by_output = {item.output: item for item in model.calibrations.values()}
    by_source: dict[str, CalibrationNode] = {}
    for item in model.calibrations.values():
        by_source.setdefault(item.source, item)
    for node in model.nodes:
        for index, tensor in enumerate(node.inputs):
            if tensor in by_output:
                operand = by_output[tensor]
                kind = WEIGHT if operand.kind == WEIGHT else f"{INPUT}-{index}"
                found[node.name, kind] = operand.name
        if node.outputs and node.outputs[0] in by_source:
            found[node.name, OUTPUT] = by_source[node.outputs[0]].name
    return found


def by_calibration(
    check: str, argument: str, given: Mapping[str, V], model: CalibratedModel
) -> dict[str, V]:
    """What a table by pattern says about each calibration node; the later entry wins."""
    ports = calibration_ports(model)
    said = {
        ports[port]: value
        for pattern, value in given.items()
        for port in ports_of(check, argument, pattern, list(ports))
    }
    return {name: said[name] for name in model.calibrations if name in said}


def dtype_of(item: CalibrationNode) -> str:
    """``qint8`` of a node with 8 bits."""
    return f"qint{item.bits}"


def users_of(item: CalibrationNode) -> str:
    """The nodes that read it, as the debugger's tables list them: ``Conv_50;Add_55``."""
    return ";".join(item.users)


def _kind(item: CalibrationNode) -> str:
    return WEIGHT if item.kind == WEIGHT else OUTPUT

"""``load_calibrated``: from a file or a ``ModelProto`` to a :class:`CalibratedModel`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from qtune.errors import OnnxImportError
from qtune.hbir import hz_calibration
from qtune.hbir.hz_calibration import Calibration
from qtune.hbir.onnx_import import source as files
from qtune.hbir.onnx_import.graph_view import constant_tensors
from qtune.hbir.onnx_import.pairs import Pair, pairs
from qtune.onnx_debug.calibrated import (
    ACTIVATION,
    WEIGHT,
    CalibratedModel,
    CalibrationNode,
    OrdinaryNode,
    Port,
)
from qtune.onnx_debug.names import free_name


def load_calibrated(source: files.Source | CalibratedModel) -> CalibratedModel:
    """Return the model of a path (external data beside it is found), of bytes or a ``ModelProto``.

    Taken are models with HzCalibration nodes of any domain and standard models with pairs of
    QuantizeLinear and DequantizeLinear. ``source`` stays as it is. Raises ``OnnxImportError``.
    """
    if isinstance(source, CalibratedModel):
        return source
    path = str(source) if isinstance(source, (str, Path)) else None
    return _described(files.read_calibrated(source), path)


def _described(proto: onnx.ModelProto, path: str | None) -> CalibratedModel:
    graph = proto.graph
    calibrations = _calibrations(graph)
    if not calibrations:
        raise OnnxImportError(
            f"{path or 'the model'} has no calibration node (HzCalibration, or QuantizeLinear with "
            "DequantizeLinear); make a calibrated model with qtune.onnx_debug.build_model"
        )
    by_output = {item.output: item.name for item in calibrations}
    inside = {name for item in calibrations for node in item.nodes for name in node.output}
    nodes = tuple(
        OrdinaryNode(
            node.name,
            node.op_type,
            tuple(node.input),
            tuple(node.output),
            tuple(by_output[name] for name in dict.fromkeys(node.input) if name in by_output),
        )
        for node in graph.node
        if node.op_type != "Constant" and inside.isdisjoint(node.output)
    )
    return CalibratedModel(
        proto,
        nodes,
        {item.name: item for item in calibrations},
        tuple(port_of(info) for info in graph.input),
        tuple(port_of(info) for info in graph.output),
        path,
    )


def _calibrations(graph: onnx.GraphProto) -> list[CalibrationNode]:
    """All calibration nodes in graph order. Raises one error for all that make no sense."""
    constants = set(constant_tensors(graph))
    users = _users(graph)
    standard = {pair.output: pair for pair in pairs(graph)}
    taken = {node.name for node in graph.node}
    found: list[CalibrationNode] = []
    problems: list[str] = []
    for node in graph.node:
        try:
            if hz_calibration.is_calibration(node):
                found.append(_calibration(node, constants, users))
            elif node.output and node.output[0] in standard:
                name = _free(standard[node.output[0]], constants, taken)
                taken.add(name)
                found.append(_from_pair(name, standard[node.output[0]], constants, users))
        except OnnxImportError as error:
            problems.append(str(error))
    if problems:
        lines = "".join(f"\n  - {line}" for line in problems)
        raise OnnxImportError(f"{len(problems)} calibration node(s) can't be taken:{lines}")
    return found


def _calibration(
    node: onnx.NodeProto, constants: Collection[str], users: Mapping[str, tuple[str, ...]]
) -> CalibrationNode:
    held = hz_calibration.calibration_of(node)
    source, output = node.input[0], node.output[0]
    return CalibrationNode(
        name=node.name,
        kind=WEIGHT if source in constants else ACTIVATION,
        source=source,
        output=output,
        users=users.get(output, ()),
        nodes=(node,),
        scales=held.scales,
        thresholds=held.thresholds,
        bits=held.bits,
        axis=held.axis,
    )


def _from_pair(
    name: str, pair: Pair, constants: Collection[str], users: Mapping[str, tuple[str, ...]]
) -> CalibrationNode:
    """Standard nodes as a calibration node."""
    thresholds = pair.thresholds
    hz_calibration.check(name, Calibration(pair.scales, thresholds, pair.bits, pair.axis))
    nodes = (pair.dequantize,) if pair.quantize is None else (pair.quantize, pair.dequantize)
    return CalibrationNode(
        name=name,
        kind=WEIGHT if pair.source in constants else ACTIVATION,
        source=pair.source,
        output=pair.output,
        users=users.get(pair.output, ()),
        nodes=nodes,
        scales=pair.scales,
        thresholds=thresholds,
        bits=pair.bits,
        axis=pair.axis,
        is_stored=pair.quantize is None,
    )


def _free(pair: Pair, constants: Collection[str], taken: Collection[str]) -> str:
    """``<tensor>_HzCalibration``; onnxruntime calls the codes of the weight w ``w_quantized``."""
    tensor = pair.source
    if pair.quantize is None:
        tensor = tensor.removesuffix("_quantized")
    return free_name(f"{tensor}{hz_calibration.SUFFIX}", taken)


def _users(graph: onnx.GraphProto) -> Mapping[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for node in graph.node:
        for name in dict.fromkeys(node.input):
            found.setdefault(name, []).append(node.name)
    return {name: tuple(names) for name, names in found.items()}


def port_of(info: onnx.ValueInfoProto) -> Port:
    """An input or output as a value."""
    kind = info.type.tensor_type
    shape = None
    if kind.HasField("shape"):
        shape = tuple(files.known_size(dim) for dim in kind.shape.dim)
    return Port(info.name, shape, np.dtype(helper.tensor_dtype_to_np_dtype(kind.elem_type)))

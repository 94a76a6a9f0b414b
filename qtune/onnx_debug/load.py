"""``load_calibrated``: from a file or a ``ModelProto`` to a :class:`CalibratedModel`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, shape_inference

from qtune.errors import OnnxImportError
from qtune.hbir import hz_calibration
from qtune.hbir.onnx_import import source as files
from qtune.onnx_debug.calibrated import (
    ACTIVATION,
    WEIGHT,
    CalibratedModel,
    CalibrationNode,
    OrdinaryNode,
    Port,
)
from qtune.onnx_debug.names import with_unique_names


def load_calibrated(source: files.Source | CalibratedModel) -> CalibratedModel:
    """Return the model of a path (external data beside it is found), of bytes or a ``ModelProto``.

    Taken are models with HzCalibration nodes of any domain and standard models with pairs of
    QuantizeLinear and DequantizeLinear. ``source`` stays as it is. Raises ``OnnxImportError``.
    """
    if isinstance(source, CalibratedModel):
        return source
    path = str(source) if isinstance(source, (str, Path)) else None
    proto = with_unique_names(files.read_calibrated(source))
    return _described(proto, path)


def _described(proto: onnx.ModelProto, path: str | None) -> CalibratedModel:
    constants = _constants(proto.graph)
    users = _users(proto.graph)
    calibrations: dict[str, CalibrationNode] = {}
    by_output: dict[str, str] = {}
    for node in proto.graph.node:
        if hz_calibration.is_calibration(node):
            item = _calibration(node, constants, users)
            calibrations[item.name] = item
            by_output[item.output] = item.name
    if not calibrations:
        raise OnnxImportError(
            f"{path or 'the model'} has no calibration node (HzCalibration, or QuantizeLinear with "
            "DequantizeLinear); make a calibrated model with qtune.onnx_debug.build_model"
        )
    nodes = tuple(
        OrdinaryNode(
            node.name,
            node.op_type,
            tuple(node.input),
            tuple(node.output),
            tuple(by_output[name] for name in dict.fromkeys(node.input) if name in by_output),
        )
        for node in proto.graph.node
        if not hz_calibration.is_calibration(node)
    )
    graph = proto.graph
    return CalibratedModel(
        proto,
        nodes,
        calibrations,
        tuple(_port(info) for info in graph.input if info.name not in constants),
        tuple(_port(info) for info in graph.output),
        path,
    )


def _calibration(
    node: onnx.NodeProto, constants: frozenset[str], users: Mapping[str, tuple[str, ...]]
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


def _constants(graph: onnx.GraphProto) -> frozenset[str]:
    made = (name for node in graph.node if node.op_type == "Constant" for name in node.output)
    return frozenset((*(tensor.name for tensor in graph.initializer), *made))


def _users(graph: onnx.GraphProto) -> Mapping[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for node in graph.node:
        for name in dict.fromkeys(node.input):
            found.setdefault(name, []).append(node.name)
    return {name: tuple(names) for name, names in found.items()}


def _port(info: onnx.ValueInfoProto) -> Port:
    kind = info.type.tensor_type
    shape = None
    if kind.HasField("shape"):
        shape = tuple(d.dim_value if d.HasField("dim_value") else None for d in kind.shape.dim)
    return Port(info.name, shape, np.dtype(helper.tensor_dtype_to_np_dtype(kind.elem_type)))


def with_shapes(proto: onnx.ModelProto) -> onnx.ModelProto:
    """``proto`` with the types and shapes of all tensors that onnx can tell."""
    return shape_inference.infer_shapes(proto, data_prop=True)


def constant_tensors(proto: onnx.ModelProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    """Name and tensor of all constants, initializers and Constant nodes."""
    yield from ((tensor.name, tensor) for tensor in proto.graph.initializer)
    for node in proto.graph.node:
        if node.op_type == "Constant":
            yield from ((node.output[0], a.t) for a in node.attribute if a.name == "value")

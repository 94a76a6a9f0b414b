"""Writing calibration nodes into the optimized model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from qtune.arith.quantize import scale_from_absmax
from qtune.dtype import qint8, qint16
from qtune.hbir import hz_calibration
from qtune.hbir.builder import META_REASON
from qtune.hbir.hz_calibration import SUFFIX, Array, Calibration
from qtune.hbir.onnx_import.names import free_name
from qtune.onnx_debug.build.place import Place, Placement

DTYPES = {8: qint8, 16: qint16}


@dataclass(frozen=True, slots=True)
class Inserted:
    """The calibrated model, and the name of the node of each place, in their order."""

    proto: onnx.ModelProto
    names: tuple[str, ...]


def grid_of(threshold: Array, bits: int, axis: int = -1) -> Calibration:
    """The grid of a threshold that was observed or searched: ``T / 127.5``, ``T / 32767.5``.

    A range of 0 gives the scale that it has everywhere (numerics.md section 1).
    """
    dtype = DTYPES[bits]
    flat = np.asarray(threshold, np.float32).reshape(-1)
    scales = scale_from_absmax(flat, dtype)
    full = scales * np.float32(dtype.divisor)
    thresholds = np.where(flat > 0, flat, full).astype(np.float32)
    return Calibration(scales, thresholds, bits, axis if flat.size > 1 else -1)


def with_calibrations(
    proto: onnx.ModelProto,
    placement: Placement,
    grid: Callable[[Place], Calibration],
) -> Inserted:
    """A copy of ``proto`` with a calibration node at each place; ``proto`` stays as it is.

    Nodes that are to stay float bear the reason, for the import (``qtune.float_reason`` in their
    metadata): the values that they read leave the integers before them.
    """
    places = placement.places
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    graph = copy.graph
    nodes = {node.name: node for node in graph.node}
    order = {node.name: position for position, node in enumerate(graph.node)}
    makers = {name: node.name for node in graph.node for name in node.output}
    taken_nodes = set(nodes)
    taken_tensors = _tensors(graph)
    before: dict[int, list[onnx.NodeProto]] = {}
    names = []
    for place in places:
        name = free_name(f"{place.tensor}{SUFFIX}", taken_nodes)
        taken_nodes.add(name)
        names.append(name)
        source, target = place.tensor, free_name(f"{place.tensor}_calibrated", taken_tensors)
        if place.is_output:
            source, target = free_name(f"{place.tensor}_float", taken_tensors), place.tensor
            _rename_output(nodes[makers[place.tensor]], place.tensor, source)
        taken_tensors |= {source, target}
        for node_name, index in place.slots:
            nodes[node_name].input[index] = target
        at = min((order[node_name] for node_name, _ in place.slots), default=len(order))
        before.setdefault(at, []).append(
            hz_calibration.make_node(name, source, target, grid(place))
        )
    ordered: list[onnx.NodeProto] = []
    for position, node in enumerate(graph.node):
        ordered += [*before.get(position, ()), node]
    ordered += before.get(len(order), ())
    made = [onnx.NodeProto.FromString(node.SerializeToString()) for node in ordered]
    del graph.node[:]
    graph.node.extend(made)
    _note_types(copy, places)
    for node in graph.node:
        if node.name in placement.floats:
            node.metadata_props.add(key=META_REASON, value=placement.floats[node.name])
    hz_calibration.declare(copy)
    return Inserted(copy, tuple(names))


def _rename_output(node: onnx.NodeProto, old: str, new: str) -> None:
    for index, name in enumerate(node.output):
        if name == old:
            node.output[index] = new


def _note_types(proto: onnx.ModelProto, places: Sequence[Place]) -> None:
    """Types and shapes of what the calibration nodes give: those of what they read."""
    graph = proto.graph
    known = {info.name: info for info in (*graph.input, *graph.value_info, *graph.output)}
    placed = {place.tensor for place in places}
    for node in graph.node:
        if not hz_calibration.is_calibration(node):
            continue
        source, target = node.input[0], node.output[0]
        info = known.get(source if source in known else target)
        if info is None or not placed:
            continue
        for name in (source, target):
            if name not in known:
                copy = graph.value_info.add()
                copy.CopyFrom(info)
                copy.name = name


def _tensors(graph: onnx.GraphProto) -> set[str]:
    made = {name for node in graph.node for name in (*node.input, *node.output)}
    return made | {tensor.name for tensor in graph.initializer}

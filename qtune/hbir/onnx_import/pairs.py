"""Pairs of QuantizeLinear and DequantizeLinear of a file, as the debugger switches them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from qtune.hbir.onnx_import.graph_view import (
    GraphView,
    drop_unused_initializers,
    replace_nodes,
)
from qtune.hbir.onnx_import.moved_codes import with_values_moved

Array = np.ndarray[Any, Any]

QUANTIZERS = ("QuantizeLinear", "DequantizeLinear")

_BITS: Mapping[int, int] = {
    onnx.TensorProto.INT8: 8,
    onnx.TensorProto.UINT8: 8,
    onnx.TensorProto.INT16: 16,
    onnx.TensorProto.UINT16: 16,
    onnx.TensorProto.INT4: 4,
    onnx.TensorProto.UINT4: 4,
}
"""Element types of codes -> bits."""

_UNSIGNED = (onnx.TensorProto.UINT8, onnx.TensorProto.UINT16, onnx.TensorProto.UINT4)


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """A place where a tensor is brought to a grid by standard nodes.

    ``quantize`` is ``None`` where the file holds the codes. ``source``: the tensor that is read;
    ``output``: the one on the grid. ``scales``: float32 ``[1]`` or ``[channels]`` along ``axis``
    (-1 for one). ``lowest``, ``highest``: what the outermost codes stand for, in steps, int64 as
    ``scales`` or ``[1]``. ``key``: equal for pairs that compute the same.
    """

    quantize: onnx.NodeProto | None
    dequantize: onnx.NodeProto
    source: str
    output: str
    scales: Array
    bits: int
    axis: int
    lowest: Array
    highest: Array
    key: tuple[Any, ...]

    @property
    def thresholds(self) -> Array:
        """The largest magnitude on the grid, float32 as ``scales``: ``scale * 128`` of int8."""
        steps = np.maximum(np.abs(self.lowest), np.abs(self.highest))
        return np.asarray(self.scales * steps.astype(np.float32), dtype=np.float32)

    @property
    def starts_at_zero(self) -> bool:
        """Whether an activation's lowest code stands for exactly 0, in all channels."""
        return self.quantize is not None and not self.lowest.any()


def pairs(graph: onnx.GraphProto) -> Iterator[Pair]:
    """The pairs of ``graph``, in the order of their DequantizeLinear nodes.

    A QuantizeLinear whose codes go elsewhere as well is part of none, nor is a DequantizeLinear on
    another grid than its QuantizeLinear, nor one of scales in blocks: these are ordinary nodes.
    """
    view = GraphView(graph)
    for node in graph.node:
        if not _is_standard(node, "DequantizeLinear"):
            continue
        codes = node.input[0]
        found = _stored(node, view) if codes in view.constants else _made(node, view)
        if found is not None:
            yield found


def unified(proto: onnx.ModelProto) -> onnx.ModelProto:
    """``proto``, changed in place: one pair for each tensor and grid, int32 biases as floats.

    Pairs that compute the same (one for each user, several DequantizeLinear behind one
    QuantizeLinear) become the first of them. What is a graph output keeps its name.
    """
    _fold_biases(proto)
    with_values_moved(proto)
    first: dict[tuple[Any, ...], str] = {}
    renamed: dict[str, str] = {}
    for pair in list(pairs(proto.graph)):
        known = first.setdefault(pair.key, pair.output)
        if known != pair.output:
            renamed[pair.output] = known
    if renamed:
        _rename(proto.graph, renamed)
    return proto


def _rename(graph: onnx.GraphProto, renamed: Mapping[str, str]) -> None:
    results = {info.name for info in graph.output}
    kept = []
    for node in graph.node:
        if node.output and node.output[0] in renamed:
            name = node.output[0]
            if name in results:
                kept.append(helper.make_node("Identity", [renamed[name]], [name], name=node.name))
            continue
        for index, name in enumerate(node.input):
            node.input[index] = renamed.get(name, name)
        kept.append(node)
    wanted = {name for node in kept for name in node.input} | results
    alive = [n for n in kept if n.op_type != "QuantizeLinear" or n.output[0] in wanted]
    replace_nodes(graph, alive)


def _fold_biases(proto: onnx.ModelProto) -> None:
    """DequantizeLinear of constant int32 becomes the constant that it computes."""
    graph = proto.graph
    view = GraphView(graph)
    kept = []
    for node in graph.node:
        real = _bias(node, view)
        if real is None or node.output[0] in view.results:
            kept.append(node)
        else:
            graph.initializer.append(numpy_helper.from_array(real, node.output[0]))
    if len(kept) < len(graph.node):
        replace_nodes(graph, kept)
        drop_unused_initializers(graph)


def _bias(node: onnx.NodeProto, view: GraphView) -> Array | None:
    tensor = view.constants.get(node.input[0]) if node.input else None
    if tensor is None or tensor.data_type != onnx.TensorProto.INT32:
        return None
    grid = _grid(node, view) if _is_standard(node, "DequantizeLinear") else None
    if grid is None:
        return None
    codes = numpy_helper.to_array(tensor)
    form = () if grid.axis < 0 else [-1 if i == grid.axis else 1 for i in range(codes.ndim)]
    if grid.zero is not None:
        codes = codes - grid.zero.reshape(() if grid.zero.size == 1 else form)
    return np.asarray(codes.astype(np.float32) * grid.scale.reshape(form), dtype=np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class _Grid:
    scale: Array
    zero: Array | None
    axis: int
    key: tuple[Any, ...]


def _grid(node: onnx.NodeProto, view: GraphView) -> _Grid | None:
    """The grid of a quantize node; ``None`` for blocks, computed scales and other float types."""
    scale = view.array(node.input[1])
    has_zero = len(node.input) > 2 and bool(node.input[2])
    zero = view.array(node.input[2]) if has_zero else None
    is_computed = scale is None or (has_zero and zero is None)
    if is_computed or scale is None or scale.ndim > 1 or scale.dtype != np.float32:
        return None
    axis = _axis(node, scale, view.rank(node.input[0]))
    if axis is None:
        return None
    points = None if zero is None else zero.astype(np.int64)
    is_zero = points is None or not points.any()
    key = (scale.tobytes(), None if is_zero or points is None else points.tobytes(), axis)
    return _Grid(scale.reshape(-1), points, axis, key)


def _axis(node: onnx.NodeProto, scale: Array, rank: int | None) -> int | None:
    if scale.size == 1:
        return -1
    axis = next((int(a.i) for a in node.attribute if a.name == "axis"), 1)
    if axis >= 0:
        return axis
    return None if rank is None else axis + rank


def _is_standard(node: onnx.NodeProto, op_type: str) -> bool:
    return bool(node.op_type == op_type and not node.domain)


def _stored(node: onnx.NodeProto, view: GraphView) -> Pair | None:
    bits = _BITS.get(view.constants[node.input[0]].data_type)
    grid = _grid(node, view)
    if bits is None or grid is None:
        return None
    source, output = node.input[0], node.output[0]
    limits = _limits(view.constants[source].data_type, bits, grid)
    key = (source, *grid.key)
    return Pair(None, node, source, output, grid.scale, bits, grid.axis, *limits, key)


def _made(node: onnx.NodeProto, view: GraphView) -> Pair | None:
    codes = node.input[0]
    maker = view.makers.get(codes)
    if maker is None or not _is_standard(maker, "QuantizeLinear") or codes in view.results:
        return None
    if not all(_is_standard(user, "DequantizeLinear") for user in view.users[codes]):
        return None
    element = _element(maker, view)
    grid, before = _grid(node, view), _grid(maker, view)
    bits = _BITS.get(element)
    if grid is None or before is None or bits is None or not _is_same(grid, before):
        return None
    source, output = maker.input[0], node.output[0]
    key = (source, element, *before.key)
    limits = _limits(element, bits, grid)
    return Pair(maker, node, source, output, grid.scale, bits, before.axis, *limits, key)


def _limits(element: int, bits: int, grid: _Grid) -> tuple[Array, Array]:
    """The lowest and the highest code of an element type, less the zero point."""
    low = 0 if element in _UNSIGNED else -(1 << (bits - 1))
    zero = np.zeros(1, np.int64) if grid.zero is None else grid.zero.reshape(-1)
    return low - zero, low + (1 << bits) - 1 - zero


def _is_same(a: _Grid, b: _Grid) -> bool:
    """Whether both nodes of a pair state one grid; a pair's axis may be written in two ways."""
    return a.key[:2] == b.key[:2] and (a.axis == b.axis or a.scale.size == 1)


def _element(maker: onnx.NodeProto, view: GraphView) -> int:
    """The element type of the codes that a QuantizeLinear gives."""
    if len(maker.input) > 2 and maker.input[2]:
        tensor = view.constants.get(maker.input[2])
        return 0 if tensor is None else int(tensor.data_type)
    stated = next((int(a.i) for a in maker.attribute if a.name == "output_dtype"), 0)
    return stated or int(onnx.TensorProto.UINT8)

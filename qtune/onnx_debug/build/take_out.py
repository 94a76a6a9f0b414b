"""Taking the grids of a file out of it, so that a float model is left (``kept``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from qtune.errors import ArgumentError, OnnxImportError
from qtune.hbir import hz_calibration
from qtune.hbir.domain import OPSET
from qtune.hbir.onnx_import.calibrations import WEIGHT_MOVERS
from qtune.hbir.onnx_import.evaluate import run_node
from qtune.hbir.onnx_import.graph_view import (
    GraphView,
    drop_unused_initializers,
    replace_nodes,
)
from qtune.hbir.onnx_import.grids import Grid, grid_of, is_weight_grid
from qtune.hbir.onnx_import.pairs import Pair, pairs
from qtune.hbir.onnx_import.removed_relus import with_relus_back
from qtune.onnx_debug.build.kept import Kept, KeptGrid, LostGrid, without_stand_ins

Array = np.ndarray[Any, Any]

_GEMMS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""Operators whose second input, where it is constant, is a weight."""

_SLACK = np.float32(1.01)
"""Steps by which a threshold may differ from ``2**(bits-1)`` scales and is still that of the grid:
one that was observed is half a step smaller, and other tools count a step less."""


def taken_out(proto: onnx.ModelProto) -> Kept:
    """Take the grids out of ``proto``, in place; what they were.

    Activations: an Identity is left, under the names of the file's last node and of its result.
    Constants: the float values become an initializer of that name, also behind operators that
    move them. A pair that has no form here is gone: its readers get the float values.
    Raises ``ArgumentError`` for a calibration node whose thresholds and scales contradict.
    """
    taking = _Taking(proto)
    for node in proto.graph.node:
        taking.take(node)
    if not (taking.grids or taking.lost):
        return Kept()
    before = {tensor.name: tensor for tensor in proto.graph.initializer}
    replace_nodes(proto.graph, taking.nodes)
    held = {name: onnx.TensorProto.FromString(t.SerializeToString()) for name, t in before.items()}
    drop_unused_initializers(proto.graph)
    left = {tensor.name for tensor in proto.graph.initializer}
    proto.graph.initializer.extend(
        numpy_helper.from_array(np.ascontiguousarray(array), name)
        for name, array in taking.arrays.items()
    )
    drop_unused_initializers(proto.graph)
    wanted = {name for grid in taking.grids.values() for n in grid.nodes for name in n.input}
    gone = [tensor for name, tensor in held.items() if name in wanted and name not in left]
    return Kept(taking.grids, gone, taking.lost)


def float_form(proto: onnx.ModelProto, kept: Kept) -> onnx.ModelProto:
    """The float model of ``proto``, out of which ``kept`` was taken: nothing stands in its place.

    Relus that a quantizer took out are back (``with_relus_back``).
    """
    if not kept.grids:
        return proto
    copy = with_relus_back(kept.joined(proto))
    return without_stand_ins(copy, taken_out(copy).stand_ins)


class _Taking:
    """Walks over the nodes once. ``arrays``: float values of constants on a grid, by tensor."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        graph = proto.graph
        self.view = GraphView(graph)
        self.pairs = {pair.output: pair for pair in pairs(graph)}
        self.quantized = {
            pair.quantize.output[0]
            for pair in self.pairs.values()
            if pair.quantize is not None
            and all(
                user.output[0] in self.pairs for user in self.view.users[pair.dequantize.input[0]]
            )
        }
        made = ir.from_proto(proto) if self.pairs else None
        self.forms = {} if made is None else {node.name: node for node in made.graph}
        self.grids: dict[str, KeptGrid] = {}
        self.arrays: dict[str, Array] = {}
        self.lost: dict[str, LostGrid] = {}
        self.renamed: dict[str, str] = {}
        self.nodes: list[onnx.NodeProto] = []

    def take(self, node: onnx.NodeProto) -> None:
        """Enter ``node`` in what is left, or in what is taken."""
        output = node.output[0] if node.output else ""
        for index, name in enumerate(node.input):
            node.input[index] = self.renamed.get(name, name)
        if hz_calibration.is_calibration(node):
            self._calibration(node)
        elif output in self.pairs:
            self._pair(self.pairs[output])
        elif output in self.quantized:
            return
        elif node.op_type in WEIGHT_MOVERS and not node.domain and self._is_held(node):
            self._mover(node)
        else:
            self.nodes.append(node)

    def _calibration(self, node: onnx.NodeProto) -> None:
        held = hz_calibration.calibration_of(node)
        _refuse_contradiction(node.name, held)
        array = self._array(node.input[0])
        source, output = node.input[0], node.output[0]
        whole = hz_calibration.make_node(node.name, source, output, held)  # all attributes stated
        grid = KeptGrid(source, output, held.bits, (whole,))
        self._enter(grid, array, node)

    def _pair(self, pair: Pair) -> None:
        parts = (pair.dequantize,) if pair.quantize is None else (pair.quantize, pair.dequantize)
        grid = KeptGrid(pair.source, pair.output, pair.bits, tuple(_copy(node) for node in parts))
        form, array = self._form(pair), self._array(pair.source)
        reason = form if isinstance(form, str) else self._misfit(pair, form, array)
        if reason is not None:
            maker = self.view.makers.get(pair.source)
            users = tuple(node.name for node in self.view.users.get(pair.output, ()))
            name = "" if maker is None or array is not None else maker.name
            self.lost[pair.output] = LostGrid(pair.source, users, name, reason)
        if array is not None and (reason is not None or pair.quantize is None):
            array = self._values(grid, array)
        if reason is None:
            self._enter(grid, array, pair.dequantize)
        elif array is None and pair.output not in self.view.results:
            self.renamed[pair.output] = pair.source
        else:
            self._leave(grid, array, pair.dequantize)

    def _misfit(self, pair: Pair, grid: Grid, array: Array | None) -> str | None:
        """Why the BPU takes no such grid of an activation (``array``: ``None``) or of a weight."""
        if array is None and grid.axis >= 0:
            return f"{grid.scale.size} scales; the BPU takes one per tensor of activations"
        users = self.view.users.get(pair.output, ())
        is_weight = any(n.op_type in _GEMMS and n.input[1] == pair.output for n in users)
        if array is not None and is_weight and not is_weight_grid(grid):
            return f"a weight with a zero point (codes {grid.qmin} .. {grid.qmax})"
        return None

    def _values(self, grid: KeptGrid, array: Array) -> Array:
        """What the file's nodes make of a constant."""
        known = {grid.source: array}
        for node in grid.nodes:
            known[node.output[0]] = self._evaluated(node, known)
        return known[grid.output]

    def _evaluated(self, node: onnx.NodeProto, known: Mapping[str, Array]) -> Array:
        arrays = {n: known[n] if n in known else self._array(n) for n in node.input if n}
        (result,) = run_node(node, OPSET, {n: a for n, a in arrays.items() if a is not None})
        return result

    def _form(self, pair: Pair) -> Grid | str:
        """The grid, or why it has no form here."""
        nodes = [pair.dequantize] if pair.quantize is None else [pair.quantize, pair.dequantize]
        try:
            return [grid_of(self.forms[node.name], _data_of) for node in nodes][0]
        except OnnxImportError as error:
            return str(error)

    def _array(self, name: str) -> Array | None:
        return self.arrays[name] if name in self.arrays else self.view.array(name)

    def _enter(self, grid: KeptGrid, array: Array | None, last: onnx.NodeProto) -> None:
        name = self._leave(grid, array, last)
        self.grids[grid.output] = replace(grid, stand_in=name)

    def _leave(self, grid: KeptGrid, array: Array | None, last: onnx.NodeProto) -> str | None:
        """Leave the float values under the name of the result; the name of a new Identity."""
        if array is not None and grid.output not in self.view.results:
            self.arrays[grid.output] = array
            return None
        identity = helper.make_node("Identity", [grid.source], [grid.output], name=last.name)
        self.nodes.append(identity)
        return last.name

    def _is_held(self, node: onnx.NodeProto) -> bool:
        rest = [self.view.array(name) for name in node.input[1:] if name]
        is_result = node.output[0] in self.view.results
        return (
            node.input[0] in self.grids
            and node.input[0] in self.arrays
            and not (is_result or any(array is None for array in rest))
        )

    def _mover(self, node: onnx.NodeProto) -> None:
        """An operator that moves a constant on a grid is part of what makes the constant."""
        before, output = self.grids[node.input[0]], node.output[0]
        self.arrays[output] = self._evaluated(node, {})
        self.grids[output] = replace(before, output=output, nodes=(*before.nodes, _copy(node)))


def _copy(node: onnx.NodeProto) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    return copy


def _data_of(value: ir.Value) -> Array | None:
    return None if value.const_value is None else value.const_value.numpy()


def _refuse_contradiction(name: str, held: hz_calibration.Calibration) -> None:
    """Whoever changes thresholds and leaves the scales would change nothing."""
    full = held.scales * np.float32(1 << (held.bits - 1))
    off = np.abs(held.thresholds - full) / held.scales
    worst = int(np.argmax(off))
    if off[worst] > _SLACK:
        raise ArgumentError(
            f"{name}: its threshold {held.thresholds[worst]:g} contradicts its scale "
            f"{held.scales[worst]:g}, which reaches to {full[worst]:g}; the scales count. Remove "
            "the attribute scales to have the thresholds count (threshold / "
            f"{1 << (held.bits - 1)} is the scale), or set both"
        )

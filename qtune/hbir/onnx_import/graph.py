"""The walk over an imported graph: quantize nodes of any form become FakeQuant nodes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from qtune.errors import HbirError, OnnxImportError
from qtune.hbir.attributes import dump_facts, node_attributes
from qtune.hbir.builder import (
    META_ATTRS,
    META_FLOPS,
    META_REASON,
    META_SHAPES,
    META_TYPE,
    META_ZERO_POINT,
    GraphBuilder,
    mark_codes,
    mark_result,
)
from qtune.hbir.onnx_import.calibrations import (
    calibration,
    early_grids,
    is_calibration,
    is_plain_constant,
    moved_weight,
    moves_weight,
    weight_of,
)
from qtune.hbir.onnx_import.composed import stays_float
from qtune.hbir.onnx_import.form import OnnxNode, OnnxWeight, emit, rewrites
from qtune.hbir.onnx_import.grids import (
    Codes,
    Grid,
    codes_of,
    constant_of,
    grid_of,
    is_weight_grid,
    same_grid,
)
from qtune.hbir.onnx_import.groups import group_names
from qtune.hbir.onnx_import.support import no_form
from qtune.ops.quant.codes import range_dtype
from qtune.ops.quant.fake_quant import emit_fake_quant
from qtune.ops.registry import kernel_owners

Array = np.ndarray[Any, Any]

ELEMENTS = ("FLOAT", "BOOL", "UINT8", "INT8", "INT16", "INT32", "INT64")
"""Element types of HBIR."""


_WINDOWED = ("gemm", "pool")
"""Families whose limits on shapes are checked for imported graphs; dtypes are, of all operators."""

_WINDOW_NAMES = {
    "strides": "stride",
    "dilations": "dilation",
    "group": "groups",
    "kernel_shape": "kernel_size",
    "output_padding": "output_padding",
    "ceil_mode": "ceil_mode",
    "count_include_pad": "count_include_pad",
}


@dataclass(frozen=True, slots=True)
class _Constant:
    """A constant of the source that no node of the result holds yet."""

    data: Array


class Walk:
    """Copies ``source`` into ``builder``; ``problems`` has a line for each node without a form."""

    def __init__(self, source: ir.Model, builder: GraphBuilder) -> None:
        self.source = source
        self.builder = builder
        self.problems: list[str] = []
        self._names = {node: _name(node) for node in source.graph}
        self._groups = group_names(source.graph, self._names)
        self._env: dict[ir.Value, Any] = {}
        self._pairs: dict[tuple[ir.Value, bytes, int, int], ir.Value] = {}
        self._taken = set(self._names.values())
        self._early = early_grids(source.graph)
        self._failed: set[ir.Node | None] = set()

    def run(self) -> None:
        """Copy inputs, nodes and outputs."""
        graph = self.source.graph
        for value in graph.inputs:
            self._env[value] = self.builder.input(
                value.name or "", _element(value), _shape(value) or ()
            )
        for node in graph:
            name = self._names[node]
            with self.builder.emitting_for(name, self._groups.get(node, name)):
                self._copy(node)
        if self.problems:
            return
        for value in graph.outputs:
            self.builder.output(self._float(value, value.name or "output"), value.name or "")

    def _copy(self, node: ir.Node) -> None:
        try:
            results = self._results(node)
        except (OnnxImportError, HbirError) as error:
            self._note_problem(node, str(error))
            results = [_stand_in(self.builder, value) for value in node.outputs]
        for value, result in zip(node.outputs, results, strict=False):
            self._env[value] = result

    def _note_problem(self, node: ir.Node, problem: str) -> None:
        """Only what is not due to another problem: a shape unknown by now, a pair refused twice."""
        sources = [v for v in node.inputs if v is not None and v.producer() in self._failed]
        if not any(node.op_type == "DequantizeLinear" or _shape(v) is None for v in sources):
            self.problems.append(problem)
        self._failed.add(node)

    def _results(self, node: ir.Node) -> list[Any]:
        if node.op_type == "QuantizeLinear":
            return [self._quantize(node)]
        if node.op_type == "DequantizeLinear":
            return [self._dequantize(node)]
        if is_calibration(node):
            return [self._calibration(node)]
        return self._operator(node)

    def _calibration(self, node: ir.Node) -> Any:
        source = node.inputs[0]
        if source is None:
            raise OnnxImportError(f"{node.name}: {node.op_type} has no input")
        item = self._item(source)
        if isinstance(item, _Constant):
            return weight_of(node, item.data)
        return self._calibrated(node, source)

    def _calibrated(self, node: ir.Node, source: ir.Value) -> ir.Value:
        """``source`` on the grid of a calibration node; one FakeQuant for each grid."""
        held = calibration(node)
        if held.axis >= 0:
            raise OnnxImportError(
                f"{node.name}: an activation has {held.scales.size} scales; the BPU takes one per "
                "tensor"
            )
        key = (source, held.scales.tobytes(), held.qmin, held.qmax)
        if key not in self._pairs:
            dtype = range_dtype({"qmin": held.qmin, "qmax": held.qmax})
            name = self._result_name(source, source.producer())
            with self.builder.emitting_for(name, name):
                operand = self._float(source, "x")
                value = emit_fake_quant(self.builder, operand, held.scales, dtype)
            value.shape, value.type = source.shape, source.type
            mark_codes(value, dtype.name, float(held.scales[0]))
            mark_result(value, name, name)
            self._pairs[key] = value
        return self._pairs[key]

    def _quantize(self, node: ir.Node) -> Any:
        grid = grid_of(node, self._constant_data)
        source = node.inputs[0]
        if source is None:
            raise OnnxImportError(f"{node.name}: QuantizeLinear has no input")
        data = self._constant_data(source)
        if data is not None and is_weight_grid(grid):
            return _Constant(codes_of(data, grid))
        return Codes(self._float(source, "x"), grid, source)

    def _dequantize(self, node: ir.Node) -> Any:
        grid = grid_of(node, self._constant_data)
        source = node.inputs[0]
        item = None if source is None else self._item(source)
        if isinstance(item, _Constant):
            return _constant_codes(item.data, grid)
        if not isinstance(item, Codes):
            raise OnnxImportError(
                f"{node.name}: DequantizeLinear takes integers that no QuantizeLinear made; only "
                "pairs of both and constant weights have a form here"
            )
        if not same_grid(item.grid, grid):
            raise OnnxImportError(
                f"{node.name}: DequantizeLinear has another scale or zero point than the "
                "QuantizeLinear before it"
            )
        key = (item.source, grid.scale.tobytes(), grid.qmin, grid.qmax)
        if key not in self._pairs:
            self._pairs[key] = self._fake_quant(item)
        return self._pairs[key]

    def _fake_quant(self, codes: Codes) -> ir.Value:
        """The pair as FakeQuantHalfEven; it is the result of the operator before it."""
        grid, producer = codes.grid, codes.source.producer()
        if grid.axis >= 0:
            raise OnnxImportError(
                f"{codes.source.name}: an activation has {grid.scale.size} scales; the BPU takes "
                "one per tensor"
            )
        name = self._result_name(codes.source, producer)
        with self.builder.emitting_for(name, name):
            scale = self.builder.constant(grid.scale.reshape(()), "scale")
            attrs = {"axis": -1, "qmin": grid.qmin, "qmax": grid.qmax}
            value: ir.Value = self.builder.add(
                "FakeQuantHalfEven", [codes.value, scale], attrs, domain="qtune"
            )
        value.shape, value.type = codes.source.shape, codes.source.type
        mark_codes(value, grid.carrier.name, float(grid.scale.reshape(())))
        value.metadata_props[META_ZERO_POINT] = str(grid.zero_point)
        mark_result(value, name, name)
        return value

    def _result_name(self, source: ir.Value, producer: ir.Node | None) -> str:
        """That of the operator before the pair; its own for a further result or a further grid."""
        first = producer is not None and source is producer.outputs[0]
        if first and not any(value is source for value, *_ in self._pairs):
            return self._names[producer]  # type: ignore[index]
        base = f"{source.name}_quant"
        names = (base if count == 0 else f"{base}_{count}" for count in itertools.count())
        name = next(name for name in names if name not in self._taken)
        self._taken.add(name)
        return name

    def _operator(self, node: ir.Node) -> list[Any]:
        name = self._names[node]
        problem = no_form(node, name)
        if problem is not None:
            raise OnnxImportError(problem)
        if moves_weight(node) and node.inputs[0] is not None:
            items = [None if value is None else self._item(value) for value in node.inputs]
            if isinstance(items[0], OnnxWeight):
                constants = [i.data if isinstance(i, _Constant) else None for i in items]
                return [moved_weight(node, items[0], constants)]
        call = self._call(node, name)
        rewrite = rewrites().get(node.op_type)
        for value in node.outputs:
            _element(value)
        before = len(self.builder.graph)
        made = emit(self.builder, call) if rewrite is None else rewrite(self.builder, call)
        values = list(made) if isinstance(made, (tuple, list)) else [made]
        for value, source in zip(values, node.outputs, strict=False):
            value.shape, value.type = source.shape, source.type
        self._note_facts(node, call, before)
        if not self._is_quantized_next(node):
            mark_result(values[0], name, self._groups.get(node, name))
        return values

    def _call(self, node: ir.Node, name: str) -> OnnxNode:
        items = self._items(node)
        outputs = [v for v in node.outputs if v.uses() or v.is_graph_output()]
        count = 1 + max((node.outputs.index(v) for v in outputs), default=0)
        return OnnxNode(
            name,
            node.op_type,
            node_attributes(node),
            tuple(self._operand(node, i, item) for i, item in enumerate(items)),
            tuple(item.data if isinstance(item, _Constant) else None for item in items),
            tuple(_shape(value) for value in node.inputs),
            tuple(None if v is None else str(_element(v).numpy()) for v in node.inputs),
            tuple(_shape(value) for value in node.outputs),
            count,
            tuple(item if isinstance(item, OnnxWeight) else None for item in items),
            tuple(v is not None and len(v.uses()) == 1 for v in node.inputs),
        )

    def _items(self, node: ir.Node) -> list[Any]:
        """What the inputs are; a bias or a number that a grid rounds is that constant."""
        items = [None if value is None else self._item(value) for value in node.inputs]
        for index, item in enumerate(items):
            if isinstance(item, OnnxWeight) and is_plain_constant(node, index, item):
                items[index] = _Constant(item.values())
        return items

    def _operand(self, node: ir.Node, index: int, item: Any) -> ir.Value | None:
        value = node.inputs[index]
        if value is None:
            return None
        if stays_float(node):
            return self._unquantized(node, index, item)
        if index == 0 and node in self._early:
            return self._calibrated(self._early[node], value)
        if isinstance(item, _Constant):
            _element(value)
            return self.builder.constant(item.data, f"input{index}")
        return self._float(value, f"input{index}")

    def _unquantized(self, node: ir.Node, index: int, item: Any) -> ir.Value | None:
        """An input of an operator that the file keeps float: whatever comes leaves the integers."""
        value = node.inputs[index]
        if value is None or isinstance(item, _Constant):
            return None if value is None else self.builder.constant(item.data, f"input{index}")
        found = self._float(value, f"input{index}")
        maker = value.producer()
        is_float = maker is None or META_REASON in maker.metadata_props
        if is_float or value.dtype != ir.DataType.FLOAT:
            return found
        made: ir.Value = self.builder.add("Barrier", [found], {}, domain="qtune")
        made.shape, made.type = value.shape, value.type
        return made

    def _note_facts(self, node: ir.Node, call: OnnxNode, before: int) -> None:
        made = list(self.builder.graph)[before:]
        owners = kernel_owners()
        for new in made:
            owner = owners.get((new.domain, new.op_type))
            if owner is None or META_TYPE in new.metadata_props:
                continue
            output = call.output_shapes[0] or ()
            new.metadata_props[META_TYPE] = owner.name
            if META_REASON in node.metadata_props:
                new.metadata_props[META_REASON] = node.metadata_props[META_REASON]
            new.metadata_props[META_SHAPES] = dump_facts([call.shapes, output])
            if owner.family in _WINDOWED:
                attrs = _window_attrs(node_attributes(new))
                new.metadata_props[META_ATTRS] = dump_facts(attrs)
                if owner.flops is not None:
                    new.metadata_props[META_FLOPS] = str(owner.flops(attrs, call.shapes, output))
            return

    def _is_quantized_next(self, node: ir.Node) -> bool:
        users = [user for user, index in node.outputs[0].uses() if index == 0]
        return any(
            user.op_type == "QuantizeLinear" or is_calibration(user) or user in self._early
            for user in users
        )

    def _item(self, value: ir.Value) -> Any:
        if value not in self._env:
            if value.const_value is None:
                raise OnnxImportError(f"{value.name!r} is made by no node before its use")
            self._env[value] = _Constant(value.const_value.numpy())
        return self._env[value]

    def _constant_data(self, value: ir.Value) -> Array | None:
        item = self._item(value)
        return item.data if isinstance(item, _Constant) else None

    def _float(self, value: ir.Value, suffix: str) -> ir.Value:
        """The value in the new graph; a constant becomes an initializer of the operator."""
        item = self._item(value)
        if isinstance(item, Codes):
            raise OnnxImportError(
                f"{value.name!r}: quantized integers are used without a DequantizeLinear; only "
                "pairs of QuantizeLinear and DequantizeLinear have a form here"
            )
        if isinstance(item, OnnxWeight):
            weight: ir.Value = item.emit(self.builder)
            weight.shape, weight.type = value.shape, value.type
            return weight
        if isinstance(item, _Constant):
            _element(value)
            return self.builder.constant(item.data, suffix)
        result: ir.Value = item
        return result


def _constant_codes(data: Array, grid: Grid) -> _Constant | OnnxWeight:
    """A constant with its grid, or the float values of a bias."""
    real = constant_of(data, grid)
    if data.dtype == np.int32:
        return _Constant(real)
    return OnnxWeight(real, grid.scale, grid.axis, (grid.qmin, grid.qmax))


def _name(node: ir.Node) -> str:
    return node.name or f"{node.op_type}_{node.outputs[0].name}"


def _shape(value: ir.Value | None) -> tuple[int, ...] | None:
    if value is None or value.shape is None or not value.shape.is_static():
        return None
    return tuple(value.shape.numpy())


def _element(value: ir.Value) -> ir.DataType:
    if value.dtype is None:
        raise OnnxImportError(f"{value.name!r}: its element type is unknown")
    if value.dtype.name not in ELEMENTS:
        raise OnnxImportError(
            f"{value.name!r} has elements of type {value.dtype.name}; HBIR holds float32, bool and "
            "integers of up to 64 bits"
        )
    return value.dtype


def _stand_in(builder: GraphBuilder, value: ir.Value) -> Any:
    """A value of the right kind for a node that failed, to find further problems."""
    dtype = np.float32 if value.dtype is None else value.dtype.numpy()
    return builder.constant(np.zeros(_shape(value) or (), dtype), "missing")


def _window_attrs(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """ONNX attributes of a convolution or pool under our names."""
    found = {ours: attrs[name] for name, ours in _WINDOW_NAMES.items() if name in attrs}
    pads = attrs.get("pads", ())
    return {**found, "padding": tuple(pads[: len(pads) // 2]), "padding_mode": "zeros"}

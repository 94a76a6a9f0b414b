"""The walk of ``convert`` over the float nodes, and the borders between float and integer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from qtune.arith.quantize import dequantize
from qtune.bpu.advice import Violation, float16_ops, is_float16_value
from qtune.bpu.annotate import annotate
from qtune.bpu.context import STAYS_FLOAT, Conversion, Note
from qtune.bpu.values import dtype_of as _dtype
from qtune.bpu.values import shape_of as _shape
from qtune.dtype import float16, quant_dtype
from qtune.errors import ConvertError, MarchError
from qtune.hbir.attributes import node_attributes
from qtune.hbir.builder import (
    META_DTYPE,
    META_GROUP,
    META_OP,
    META_REASON,
    META_RESULT,
    META_SCALE,
    META_TYPE,
    OPERATOR_FACTS,
    mark_result,
)
from qtune.hbir.domain import DOMAIN
from qtune.hbir.precision import PrecisionConfig, PrecisionTable
from qtune.ops.kernel import (
    FloatConst,
    FloatNode,
    FloatValue,
    Operand,
    Pending,
    PlainValue,
    QConst,
    QValue,
)
from qtune.ops.quant.codes import march_dtype
from qtune.ops.quant.emit import emit_quantize
from qtune.ops.registry import kernel as find_kernel

_QUANTIZED = (QValue, QConst, Pending)
OUTSIDE = "it lies outside the quantized region: its inputs are float"
FLOAT_INPUT = "its weight is quantized but its input is float: put a QuantStub before it"
KEPT = "precision_config keeps it float"
TABLE_BY_NOW = "export made it a look-up table; prepare it with hybrid=True and a hybrid_dict"
BORDER = "float16 border"
"""Kind of the note for a value that goes from integers to float16 or back."""
_Made = QValue | FloatValue | PlainValue


@dataclass(slots=True)
class Traffic:
    """Dtypes that an operator takes from others and gives, for the march check."""

    inputs: set[str] = field(default_factory=set)
    output: str | None = None
    facts: dict[str, str] = field(default_factory=dict)


class Walk:
    """One conversion. ``violations`` holds everything that can't be done.

    After a violation the walk goes on with zeros on the grid that the operator would have had, so
    that operators behind it are checked as well. ``in_float``: operators that compute in float.
    ``precise``: fused groups whose requantize is that
    of consistency level 0.
    """

    def __init__(self, source: ir.Model, ctx: Conversion) -> None:
        self.source = source
        self.ctx = ctx
        self.violations: list[Violation] = []
        self.traffic: dict[str, Traffic] = {}
        self._env: dict[ir.Value, Operand] = {}
        self._makers: dict[ir.Value, str] = {}
        self._implicit: dict[ir.Value, frozenset[Violation]] = {}
        self._float16 = float16_ops(source.graph)
        self._names = frozenset(map(_op, source.graph))
        self._reasons = {
            _op(node): node.metadata_props[META_REASON]
            for node in source.graph
            if META_REASON in node.metadata_props
        }
        self._floats: dict[str, Note] = {}
        self.in_float: set[str] = set()
        self.precise: frozenset[str] = frozenset()
        self._kept = PrecisionTable(source).groups(PrecisionConfig.KEEP_FLOAT)
        ctx.on_quantize = self._check_way_back

    def run(self) -> None:
        """Convert every node, then the outputs."""
        graph = self.source.graph
        for value in graph.inputs:
            copy = self.ctx.input(value.name or "", _dtype(value), _shape(value) or ())
            self._env[value] = _outside(value, copy)
        for node in graph:
            group = node.metadata_props.get(META_GROUP, "")
            precise = self.ctx.precisely(group in self.precise)
            with self.ctx.emitting_for(_op(node), group), precise:
                self._node(node)
        for value in graph.outputs:
            with self.ctx.emitting_for(value.name or "output"):
                self._output(value)
        self.ctx.notes.extend(self._floats.values())
        annotate(self.ctx.graph, graph)

    def _node(self, node: ir.Node) -> None:
        operands = tuple(None if v is None else self._operand(v) for v in node.inputs)
        self._note_inputs(node, operands)
        if self._is_kept(node) and not makes_grid(node):
            results = self._keep_float(node, operands, KEPT)
        elif _any_quantized(operands) or not _runs_as_it_is(node):
            results = self._integer(node, operands)
        else:
            results = self._keep_float(node, operands, self._reasons.get(_op(node), OUTSIDE))
        self._note_border(node, operands)
        for value, result in zip(node.outputs, results, strict=True):
            self._store(node, value, result)

    def _operand(self, value: ir.Value) -> Operand:
        if value not in self._env and value.const_value is not None:
            self._env[value] = FloatConst(value.const_value.numpy())
        return self._env[value]

    def _integer(self, node: ir.Node, operands: tuple[Operand | None, ...]) -> tuple[Any, ...]:
        if self._is_kept(node) and not node.op_type.startswith("FakeQuant"):
            self._violate(Violation(_op(node), f"{KEPT}, but {TABLE_BY_NOW}"))
        kernel = find_kernel(node.domain, node.op_type)
        if kernel is None or kernel.convert is None:
            return self._keep_float(node, operands, f"{node.op_type} has no integer rule")
        try:
            result = kernel.convert(self.ctx, _float_node(node, operands))
            results = result if isinstance(result, tuple) else (result,)
            return tuple(self._settle(node, item) for item in results)
        except (ConvertError, MarchError) as error:
            if makes_grid(node) or isinstance(error, MarchError):
                self._violate(Violation.of(_op(node), str(error), self._names))
                return tuple(self._stand_in(value) for value in node.outputs)
            return self._keep_float(node, operands, _why_float(operands, error))

    def _violate(self, violation: Violation) -> None:
        if violation not in self.violations:
            self.violations.append(violation)

    def _stand_in(self, value: ir.Value) -> Operand:
        """Zeros in place of a result that can't be made, with its shape and grid."""
        zeros = self.ctx.constant(np.zeros(_shape(value) or (), _dtype(value).numpy()))
        dtype, scale = (value.metadata_props.get(key) for key in (META_DTYPE, META_SCALE))
        if dtype is None or scale is None:
            return _outside(value, zeros)
        return emit_quantize(self.ctx, zeros, float(scale), quant_dtype(dtype))

    def _settle(self, node: ir.Node, result: Operand) -> Operand:
        """A pending operator without fake-quantize behind it gives its high-precision result."""
        props = node.metadata_props
        final = META_RESULT in props and props.get(META_OP) == props.get(META_GROUP)
        if not isinstance(result, Pending) or not final:
            return result
        exact = result.dequantize(self.ctx)
        if exact is None:
            raise ConvertError(
                f"{_op(node)}: {node.op_type} on quantized inputs has no output scale. Give it a "
                "qconfig with an output dtype"
            )
        self._traffic(node).output = "qint32"
        return exact

    def _keep_float(
        self, node: ir.Node, operands: tuple[Operand | None, ...], reason: str
    ) -> tuple[Any, ...]:
        ctx = self.ctx
        if META_TYPE in node.metadata_props:
            self.in_float.add(_op(node))
        inputs = [None if o is None else self._materialize(node, o, reason) for o in operands]
        origins = [self._implicit.get(v, frozenset()) for v in inputs if v is not None]
        made = ctx.add(
            node.op_type,
            inputs,
            node_attributes(node),
            domain=node.domain,
            outputs=len(node.outputs),
        )
        values = made if isinstance(made, tuple) else (made,)
        for value in values:
            self._implicit[value] = frozenset().union(*origins)
        if self._stays_float(node):
            self._floats[_op(node)] = Note(
                _op(node), STAYS_FLOAT, reason, {"op_type": node.op_type}
            )
        return tuple(_outside(v, new) for v, new in zip(node.outputs, values, strict=True))

    def _stays_float(self, node: ir.Node) -> bool:
        """Whether the report has to name the operator of a node that is kept as it is."""
        props = node.metadata_props
        known = META_OP in props and _op(node) not in self._float16
        return known and any(is_float(value) for value in node.outputs)

    def _materialize(self, node: ir.Node, operand: Operand, reason: str) -> ir.Value:
        if isinstance(operand, FloatConst):
            return self.ctx.constant(operand.data)
        if isinstance(operand, QConst):
            data = dequantize(operand.codes, operand.scale, operand.axis)
            return self.ctx.constant(data.astype(np.float32))
        if isinstance(operand, (FloatValue, PlainValue)):
            value: ir.Value = operand.value
            return value
        try:
            exact = self._leave_integers(operand)
            problem = Violation.of(_op(node), reason)
        except (ConvertError, MarchError) as error:
            exact, problem = None, Violation.of(_op(node), str(error), self._names)
        if exact is None:
            self._violate(problem)
            return self.ctx.constant(np.zeros(_shape(node.inputs[0]) or (), np.float32))
        self._implicit[exact.value] = frozenset() if self._is_kept(node) else frozenset({problem})
        return exact.value  # type: ignore[no-any-return]

    def _leave_integers(self, operand: QValue | Pending) -> FloatValue | None:
        if isinstance(operand, Pending):
            return operand.dequantize(self.ctx)
        return self.ctx.dequantize(operand)

    def _check_way_back(self, value: ir.Value) -> None:
        """A float operator between quantized ones, without stubs around it, is a violation."""
        for line in sorted(self._implicit.get(value, ()), key=lambda item: (item.op, item.reason)):
            text = (
                f"{line.reason}; it would run in float between quantized operators "
                f"({self.ctx.origin.op} follows). Put a DeQuantStub before it and a QuantStub "
                "behind it, prepare with hybrid=True, or replace it"
            )
            self._violate(Violation(line.op, text))

    def _store(self, node: ir.Node, value: ir.Value, result: Operand) -> None:
        is_result = META_RESULT in node.metadata_props and value is node.outputs[0]
        if self._is_kept(node) and isinstance(result, FloatValue):
            result = self._back_on_grid(value, result)
        if is_result and isinstance(result, (QValue, FloatValue, PlainValue)):
            result = self._own_node(result)
            mark_result(result.value, _op(node), node.metadata_props[META_GROUP])
            self._note_output(node, value, result)
        if isinstance(result, FloatValue) and is_float16_value(value):
            result.value.metadata_props[META_DTYPE] = str(float16)
        if isinstance(result, QValue):
            self.ctx.track(result)
            result.value.shape = value.shape
            if not self._is_kept(node) and not self._was_integer(node):
                self._floats.pop(_op(node), None)
        self._env[value] = result
        self._makers[value] = "" if _is_requantized_input(node) else _op(node)

    def _was_integer(self, node: ir.Node) -> bool:
        """Whether a float operator with an input or a weight in integers made what it quantizes."""
        note = self._floats.get(_op(node))
        if note is not None and note.message == FLOAT_INPUT:
            return True
        source = node.inputs[0] if node.inputs else None
        made = None if source is None else self._env.get(source)
        return isinstance(made, FloatValue) and bool(self._implicit.get(made.value))

    def _is_kept(self, node: ir.Node) -> bool:
        return node.metadata_props.get(META_GROUP, "") in self._kept

    def _back_on_grid(self, value: ir.Value, result: FloatValue) -> QValue | FloatValue:
        """What is kept float and has the scale of its input is given that again."""
        dtype, scale = (value.metadata_props.get(key) for key in (META_DTYPE, META_SCALE))
        if dtype is None or scale is None:
            return result
        return self.ctx.quantize(result.value, float(scale), quant_dtype(dtype))

    def _own_node(self, result: _Made) -> _Made:
        """The result of an operator that passes its input on gets a node that bears its name."""
        maker = result.value.producer()
        if maker is not None and META_RESULT not in maker.metadata_props:
            return result
        copy = self.ctx.add("Identity", [result.value])
        copy.shape, copy.type = result.value.shape, result.value.type
        return replace(result, value=copy)

    def _output(self, value: ir.Value) -> None:
        operand = self._operand(value)
        if isinstance(operand, (QValue, Pending)):
            exact = self._leave_integers(operand)
            if exact is None:
                self._violate(Violation(value.name or "output", "the output has no scale"))
                return
            operand = exact
        if isinstance(operand, (FloatConst, QConst)):
            operand = FloatValue(self.ctx.constant(operand.data))
        if isinstance(operand, (FloatValue, PlainValue)):
            self.ctx.output(operand.value, value.name or "")

    def _traffic_dtype(self, codes: QValue) -> str:
        """The dtype that counts for the march: 8 bits less an imported zero point are int8."""
        return march_dtype(codes, self.ctx.is_imported).name

    def _traffic(self, node: ir.Node) -> Traffic:
        found = self.traffic.setdefault(_op(node), Traffic())
        found.facts.update(
            {key: text for key, text in node.metadata_props.items() if key in OPERATOR_FACTS}
        )
        return found

    def _note_inputs(self, node: ir.Node, operands: tuple[Operand | None, ...]) -> None:
        traffic = self._traffic(node)  # the facts may lie on the FakeQuant of the weight
        if _is_requantized_input(node) or self._is_kept(node):
            return
        for value, operand in zip(node.inputs, operands, strict=True):
            foreign = value is not None and self._makers.get(value) != _op(node)
            if foreign and isinstance(operand, QValue):
                traffic.inputs.add(self._traffic_dtype(operand))
            elif foreign and is_float16_value(value):
                traffic.inputs.add(float16.name)

    def _note_output(self, node: ir.Node, value: ir.Value, result: Operand) -> None:
        if self._is_kept(node):
            return
        if isinstance(result, QValue):
            self._traffic(node).output = self._traffic_dtype(result)
        elif is_float16_value(value):
            self._traffic(node).output = float16.name

    def _note_border(self, node: ir.Node, operands: tuple[Operand | None, ...]) -> None:
        """List where a value goes from integers to float16, and back."""
        if not _is_requantized_input(node) and META_RESULT not in node.metadata_props:
            return
        source = node.inputs[0]
        if node.op_type == "Cast" and isinstance(operands[0], QValue):
            self.ctx.report(BORDER, f"{operands[0].dtype} becomes float16 before it")
        elif node.op_type == "Cast" and isinstance(operands[0], Pending):
            self.ctx.report(BORDER, "its exact sum of integers leaves in float16")
        elif node.op_type.startswith("FakeQuant") and is_float16_value(source):
            self.ctx.report(BORDER, "float16 becomes an integer before it")


def _runs_as_it_is(node: ir.Node) -> bool:
    """Whether a node on floats may stay: standard ONNX, or one of ours that runs everywhere."""
    kernel = find_kernel(node.domain, node.op_type)
    everywhere = kernel is not None and kernel.run_float is not None and kernel.fast is not None
    return node.domain != DOMAIN or (everywhere and not makes_grid(node))


def _is_requantized_input(node: ir.Node) -> bool:
    """Whether the node brings an input of its operator to another grid, before the operator."""
    brings = node.op_type.startswith("FakeQuant") or node.op_type == "Cast"
    return brings and META_RESULT not in node.metadata_props


def _op(node: ir.Node) -> str:
    return node.metadata_props.get(META_OP, node.name or node.op_type)


def _outside(value: ir.Value, copy: ir.Value) -> Operand:
    copy.shape, copy.type = value.shape, value.type
    return FloatValue(copy) if is_float(value) else PlainValue(copy)


def _any_quantized(operands: Iterable[Operand | None]) -> bool:
    return any(isinstance(operand, _QUANTIZED) for operand in operands)


def _why_float(operands: Iterable[Operand | None], error: Exception) -> str:
    quantized = [operand for operand in operands if isinstance(operand, _QUANTIZED)]
    if all(isinstance(operand, QConst) for operand in quantized):
        return FLOAT_INPUT if quantized else OUTSIDE
    return str(error)


def is_float(value: ir.Value) -> bool:
    """Whether ``value`` is a floating-point tensor."""
    return _dtype(value).is_floating_point()


def makes_grid(node: ir.Node) -> bool:
    """Whether a float node puts its result on a grid of its own (a fake-quantize, a table)."""
    if node.domain != DOMAIN:
        return False
    return "qmin" in node.attributes or META_SCALE in node.outputs[0].metadata_props


def _float_node(node: ir.Node, operands: tuple[Operand | None, ...]) -> FloatNode:
    return FloatNode(
        node.op_type,
        node_attributes(node),
        operands,
        _op(node),
        tuple(_shape(value) for value in node.inputs),
        _shape(node.outputs[0]) or (),
    )

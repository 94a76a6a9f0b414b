"""Legality: every rule refuses what breaks it and shows the node."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest

from qtune.dtype import qint8
from qtune.errors import HbirError
from qtune.hbir.builder import GraphBuilder, mark_codes, mark_result
from qtune.hbir.verify import MAX_ARGUMENTS, verify
from qtune.ops.quant.emit import emit_dequantize, emit_quantize


def quantized(change: Callable[[GraphBuilder, ir.Value], ir.Value]) -> ir.Model:
    """Quantize -> what ``change`` makes of the codes -> output."""
    builder = GraphBuilder()
    x = builder.input("x", ir.DataType.FLOAT, (2, 3))
    with builder.emitting_for("op"):
        codes = emit_quantize(builder, x, 0.5, qint8).value
        mark_codes(codes, "qint8", 0.5)
        builder.output(change(builder, codes), "y")
    return builder.finish({})


def dequantized(builder: GraphBuilder, codes: ir.Value) -> ir.Value:
    from qtune.ops.kernel import QValue

    return emit_dequantize(builder, QValue(codes, qint8, 0.5)).value


def test_legal_module_passes():
    verify(quantized(dequantized), "quantized")


def test_codes_must_not_become_floats_without_a_scale():
    model = quantized(lambda b, codes: b.add("Cast", [codes], {"to": 1}))

    with pytest.raises(HbirError, match=r"node 'op/Cast'.*codes become floats without a scale"):
        verify(model, "quantized")


def test_codes_must_be_kept_in_their_element_type():
    def mark_wrong(builder: GraphBuilder, codes: ir.Value) -> ir.Value:
        mark_codes(codes, "qint16", 0.5)
        return dequantized(builder, codes)

    with pytest.raises(HbirError, match="qint16 codes are kept as INT16, not INT8"):
        verify(quantized(mark_wrong), "quantized")


def test_operator_that_nothing_owns_is_refused():
    model = quantized(lambda b, codes: b.add("Hardmax", [dequantized(b, codes)]))

    with pytest.raises(HbirError, match=r"onnx::Hardmax.*no operator of the registry owns it"):
        verify(model, "quantized")


def test_integer_operator_has_no_place_in_a_qat_module():
    with pytest.raises(HbirError, match="it has no float kernel"):
        verify(quantized(dequantized), "qat")


def test_operator_has_one_result():
    def twice(builder: GraphBuilder, codes: ir.Value) -> ir.Value:
        mark_result(codes, "op", "op")
        y = dequantized(builder, codes)
        mark_result(y, "op", "op")
        return y

    with pytest.raises(HbirError, match="operator 'op' has two results"):
        verify(quantized(twice), "quantized")


def test_node_that_comes_before_its_input_is_shown():
    model = quantized(dequantized)
    first, second = model.graph
    model.graph.remove(second)
    model.graph.insert_before(first, second)

    with pytest.raises(HbirError, match="before they are made"):
        verify(model, "quantized")


def test_attributes_must_follow_the_schema():
    model = quantized(dequantized)
    del model.graph[0].attributes["to"]

    with pytest.raises(HbirError, match=r"Quantize.*it has the attributes"):
        verify(model, "quantized")


def test_number_of_inputs_is_limited():
    builder = GraphBuilder()
    values = [builder.input(f"x{i}", ir.DataType.FLOAT, (1,)) for i in range(MAX_ARGUMENTS + 1)]
    builder.output(builder.add("Relu", [values[0]]), "y")

    with pytest.raises(HbirError, match="257 inputs; a function has at most 256"):
        verify(builder.finish({}), "qat")


def test_shapes_are_static():
    builder = GraphBuilder()
    x = builder.input("x", ir.DataType.FLOAT, (2, 2))
    shape = builder.add("Cast", [builder.add("Relu", [x])], {"to": 7})
    flat = builder.add("Reshape", [shape, builder.constant(np.array([-1]))])
    builder.output(builder.add("Expand", [x, flat]), "y")
    model = builder.finish({})

    with pytest.raises(HbirError, match="is not static"):
        verify(model, "qat")

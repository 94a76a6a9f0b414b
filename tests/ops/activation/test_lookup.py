"""The pre-export form of tables: one table in pre-export model, qat.bc and quantized.bc."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch

from qtune.arith.quantize import quantize, scale_from_absmax
from qtune.arith.table import SegmentTable, int8_table, segment_table
from qtune.bpu.convert import convert
from qtune.bpu.ort import run_in_onnxruntime
from qtune.dtype import QuantDType, qint8, qint16
from qtune.hbir.builder import META_STAGE, GraphBuilder, mark_result
from qtune.hbir.module import HbirModule
from qtune.ops.activation.lookup import fake_lookup, lower_table
from qtune.ops.quant.fake_quant import emit_fake_quant
from qtune.ops.registry import spec
from tests.ops.elementwise.rig import randn

X = randn(2, 3, 9, 8, scale=3.0)


def sigmoid_table(
    s_x: float, s_y: float, x: QuantDType, y: QuantDType, span: tuple[int, int]
) -> np.ndarray[Any, Any] | SegmentTable:
    factory = spec("sigmoid").table
    assert factory is not None
    if x is qint8:
        return int8_table(factory({}), s_x, s_y, y)
    return segment_table(factory({}), s_x, s_y, *span, y)


def module_of(
    table: np.ndarray[Any, Any] | SegmentTable, s_x: float, s_y: float, x: QuantDType, y: QuantDType
) -> HbirModule:
    b = GraphBuilder()
    value = b.input("x", ir.DataType.FLOAT, X.shape)
    value = emit_fake_quant(b, value, np.float32(s_x), x)
    with b.emitting_for("op"):
        result = lower_table(b, value, table, s_x, s_y, y)
        result = emit_fake_quant(b, result, np.float32(s_y), y)
    mark_result(result, "op", "op")
    b.output(result, "y")
    return HbirModule(b.finish({META_STAGE: "qat"}))


@pytest.mark.parametrize("x", [qint8, qint16])
@pytest.mark.parametrize("y", [qint8, qint16])
def test_pre_export_qat_and_integer_hold_the_same_table(x: QuantDType, y: QuantDType) -> None:
    s_x = float(scale_from_absmax(X.abs().max().numpy(), x))
    s_y = float(scale_from_absmax(1.0, y))
    span = tuple(int(v) for v in quantize(np.array([X.min(), X.max()]), s_x, x))
    table = sigmoid_table(s_x, s_y, x, y, (span[0], span[1]))
    qat = module_of(table, s_x, s_y, x, y)
    pre_export = fake_lookup(table, s_x, s_y, y)(X)
    assert torch.equal(qat[0].run({"x": X})["y"], pre_export)
    quantized = convert(qat, "nash-e")
    fast = quantized[0].run({"x": X})["y"]
    assert torch.equal(fast, pre_export)
    assert torch.equal(quantized[0].run({"x": X}, mode="reference")["y"], fast)
    by_ort = run_in_onnxruntime(quantized, {"x": X.numpy()})["y"]
    assert torch.equal(torch.from_numpy(by_ort), fast)
    ops = [n.op_type for n in quantized.model.graph]
    assert ops == ["Quantize", "Lut8" if x is qint8 else "Lut16", "Dequantize"]
    float_by_ort = run_in_onnxruntime(qat, {"x": X.numpy()})["y"]
    assert torch.equal(torch.from_numpy(float_by_ort), pre_export)


def test_outside_the_calibrated_range_the_border_holds() -> None:
    s = float(scale_from_absmax(8.0, qint16))
    lo, hi = (int(v) for v in quantize(np.array([-2.0, 2.0]), s, qint16))
    s_y = float(scale_from_absmax(1.0, qint16))
    table = sigmoid_table(s, s_y, qint16, qint16, (lo, hi))
    inside = fake_lookup(table, s, s_y, qint16)
    far = inside(torch.tensor([-8.0, -2.0, 2.0, 8.0]))
    assert far[0] == far[1]
    assert far[2] == far[3]


def test_other_input_grid_is_brought_to_the_tables_own() -> None:
    """A table whose input is rescaled between export and convert still means the same reals."""
    s_x = float(scale_from_absmax(X.abs().max().numpy(), qint8))
    s_y = float(scale_from_absmax(1.0, qint8))
    table = sigmoid_table(s_x, s_y, qint8, qint8, (-128, 127))
    b = GraphBuilder()
    value = b.input("x", ir.DataType.FLOAT, X.shape)
    value = emit_fake_quant(b, value, np.float32(s_x * 2), qint8)
    with b.emitting_for("op"):
        result = lower_table(b, value, table, s_x, s_y, qint8)
    mark_result(result, "op", "op")
    b.output(result, "y")
    quantized = convert(HbirModule(b.finish({META_STAGE: "qat"})), "nash-e")
    assert [n.op_type for n in quantized.model.graph][1:3] == ["Requantize", "Lut8"]
    want = torch.sigmoid(X)
    # Two roundings of the input at 2 * s_x and s_x: slope 1/4 of at most 2.5 steps, and the output.
    assert float((quantized[0].run({"x": X})["y"] - want).abs().max()) <= s_x * 2.5 / 4 + s_y


def test_result_keeps_the_inputs_dtype() -> None:
    table = sigmoid_table(0.1, 0.01, qint8, qint8, (-128, 127))
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        assert fake_lookup(table, 0.1, 0.01, qint8)(X.to(dtype)).dtype == dtype


def test_error_above_one_step_is_in_the_conversion_report() -> None:
    s_x = float(scale_from_absmax(X.abs().max().numpy(), qint16))
    s_y = float(scale_from_absmax(1.0, qint16))
    fine = sigmoid_table(s_x, s_y, qint16, qint16, (-32768, 32767))
    assert isinstance(fine, SegmentTable)
    assert convert(module_of(fine, s_x, s_y, qint16, qint16), "nash-e").report == ()
    coarse = replace(fine, error=7)
    (note,) = convert(module_of(coarse, s_x, s_y, qint16, qint16), "nash-e").report
    assert (note["op"], note["kind"], note["details"]["error"]) == ("op", "table_error", 7)

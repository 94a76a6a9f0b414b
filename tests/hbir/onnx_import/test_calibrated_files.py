"""Models with HzCalibration nodes: imported, converted to integers, against the model itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper

from qtune.arith.quantize import quantize
from qtune.arith.requantize import multiplier_shift, requantize
from qtune.bpu import compiler
from qtune.bpu.ort import run_in_onnxruntime
from qtune.dtype import qint8
from qtune.hbir import hz_calibration
from qtune.hbir.module import HbirModule
from qtune.hbir.onnx_import import import_onnx
from tests.onnx_debug import nets

from .calibrated_files import by_onnxruntime
from .quantized_files import Array

STEP = 1 + 1e-3
"""One step, and the float32 rounding of the quotient."""


def integers_of(module: HbirModule, march: str = "nash-e") -> HbirModule:
    result = compiler.convert(module, march)
    assert not result.report
    return result


def check_same_bits(module: HbirModule, feed: Mapping[str, Array]) -> dict[str, Array]:
    got: dict[str, Array] = module[0].feed(dict(feed))
    for name, value in run_in_onnxruntime(module, dict(feed)).items():
        np.testing.assert_array_equal(got[name], value)
    return got


def kinds(module: HbirModule) -> list[str]:
    return [node.op_type for node in module.model.graph]


def test_all_operators_of_a_calibrated_model_run_on_integers() -> None:
    module = import_onnx(nets.residual())
    integers = integers_of(module)
    assert kinds(integers) == [
        "Quantize",
        "QConv",
        "QConv",
        "QAdd",
        "Reshape",
        "QLinearAcc",
        "DequantizeAcc",
    ]
    for item in nets.data():
        check_same_bits(integers, {"x": item})


def test_names_in_hbir_are_those_of_the_ordinary_nodes() -> None:
    model = nets.residual()
    module = import_onnx(model)
    ordinary = [n.name for n in model.graph.node if n.op_type != "HzCalibration"]
    assert [n for n in module[0].operator_names() if n in ordinary] == ordinary


def test_the_imported_module_computes_what_the_model_computes() -> None:
    model = nets.residual()
    module = import_onnx(model)
    for item in nets.data():
        expected = by_onnxruntime(model, {"x": item})["y"]
        # float32 sums in another order: nothing lies next to a tie here
        np.testing.assert_allclose(module[0].feed({"x": item})["y"], expected, rtol=1e-5, atol=1e-5)


def test_integers_equal_a_computation_by_hand() -> None:
    """numerics.md section 2, for the first convolution and its relu."""
    model = nets.residual()
    stored, x = nets.weights(), nets.data(1)[0]
    scales = {n.input[0]: hz_calibration.calibration_of(n).scales for n in _calibrations(model)}
    s_x, s_w, s_y = scales["x"][0], scales["w0"], scales["r"][0]
    codes = np.pad(quantize(x, s_x, qint8), ((0, 0), (0, 0), (1, 1), (1, 1))).astype(np.int64)
    weight = quantize(stored["w0"], s_w, qint8, 0).astype(np.int64)
    factors = np.float64(s_x) * s_w.astype(np.float64)
    bias = np.floor(stored["b0"].astype(np.float64) / factors + 0.5).astype(np.int64)
    windows = np.lib.stride_tricks.sliding_window_view(codes, (3, 3), axis=(2, 3))
    acc = np.einsum("nihwyx,oiyx->nohw", windows, weight) + bias.reshape(1, -1, 1, 1)
    expected = np.empty_like(acc)
    for channel, factor in enumerate(factors):
        m, n = multiplier_shift(factor / np.float64(s_y))
        expected[:, channel] = requantize(acc[:, channel], m, n, qint8)
    got = results_of(integers_of(import_onnx(model)), x)["Relu_1"]
    np.testing.assert_array_equal(got.codes.numpy(), np.maximum(expected, 0))


def results_of(module: HbirModule, x: Array) -> dict[str, Any]:
    found: dict[str, Any] = {}
    module[0].run({"x": x}, observe=found.__setitem__)
    return found


def _calibrations(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [node for node in model.graph.node if hz_calibration.is_calibration(node)]


@pytest.mark.parametrize("bits", [8, 16])
def test_each_operator_is_within_a_step_of_the_calibrated_model(bits: int) -> None:
    model = nets.residual(bits=bits)
    nodes = {n.name: n.output[0] for n in model.graph.node if n.op_type != "HzCalibration"}
    steps = {n.input[0]: n for n in _calibrations(model)}
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    names = [name for node in model.graph.node for name in node.output]
    shown.graph.output.extend(helper.make_empty_tensor_value_info(n) for n in names if n != "y")
    x = nets.data(1)[0]
    values = {"x": x} | by_onnxruntime(shown, {"x": x})
    integers = integers_of(import_onnx(model))
    checked = []
    for name in integers[0].operator_names():
        target = nodes.get(name)
        if target is None:
            continue
        runner = integers[0].extract_operator(name)
        sources = {k: "x_q" if k == "x_quant" else nodes[k] for k in runner.inputs}
        feed = {k: torch.from_numpy(values.get(f"{v}_q", values[v])) for k, v in sources.items()}
        got = runner(feed).values.numpy()
        grid = "f" if target == "s" else target
        if grid in steps:
            step = hz_calibration.calibration_of(steps[grid]).scales[0]
            expected = hz_calibration.apply(
                hz_calibration.calibration_of(steps[grid]), values[target]
            )
        else:
            step, expected = np.float32(np.abs(values[target]).max() / 127.5), values[target]
        assert np.abs(got - expected).max() / step <= STEP
        checked.append(name)
    assert checked == ["Relu_1", "Conv_2", "Add_3", "Flatten_4", "Gemm_5"]

"""Standard QuantizeLinear and DequantizeLinear as calibration nodes, of any tool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper
from onnxruntime.quantization import QuantType

from qtune.hbir.onnx_import import import_onnx
from qtune.onnx_debug.load import load_calibrated
from tests.hbir.onnx_import import quantized_files
from tests.hbir.onnx_import.quantized_files import Array, graph_of, samples

make = helper.make_node
SHAPE = (2, 4)


def run(model: onnx.ModelProto | str, feed: Mapping[str, Array]) -> list[Array]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    content = model if isinstance(model, str) else model.SerializeToString()
    session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    results: list[Array] = session.run(None, dict(feed))
    return results


def quantize(source: str, target: str, zero: str = "z", **how: Any) -> onnx.NodeProto:
    return make("QuantizeLinear", [source, "s", zero], [target], **how)


def dequantize(source: str, target: str, zero: str = "z", **how: Any) -> onnx.NodeProto:
    return make("DequantizeLinear", [source, "s", zero], [target], **how)


def model_of(
    nodes: Sequence[onnx.NodeProto],
    zero: Any = None,
    *,
    opset: int = 21,
    **constants: Array,
) -> onnx.ModelProto:
    held = {"s": np.array(0.1, np.float32), "z": np.int8(0) if zero is None else zero, **constants}
    return graph_of(list(nodes), SHAPE, held, opset)


@pytest.mark.parametrize(
    ("zero", "steps"),
    [
        (np.int8(0), 128),
        (np.int8(-5), 132),
        (np.int8(5), 133),
        (np.uint8(128), 128),
        (np.uint8(0), 255),
        (np.int16(3), 32771),
        (np.uint16(700), 64835),
    ],
)
def test_a_pair_is_a_calibration_node_with_the_largest_magnitude_as_threshold(
    zero: Any, steps: int
) -> None:
    nodes = [
        quantize("x", "q", name="Q"),
        dequantize("q", "d", name="DQ"),
        make("Relu", ["d"], ["y"], name="act"),
    ]
    model = load_calibrated(model_of(nodes, zero))
    (item,) = model.calibrations.values()
    bits = 8 * zero.itemsize
    assert (item.name, item.kind, item.bits, item.axis) == (
        "x_HzCalibration",
        "activation",
        bits,
        -1,
    )
    assert [node.name for node in item.nodes] == ["Q", "DQ"]
    assert (item.source, item.output, item.users) == ("x", "d", ("act",))
    assert item.scales == np.float32(0.1)
    assert item.thresholds == np.float32(0.1) * np.float32(steps)
    assert not item.is_stored
    assert [node.name for node in model.nodes] == ["act"]


def test_pairs_of_several_users_are_one_node() -> None:
    nodes = [
        quantize("x", "q0"),
        dequantize("q0", "d0"),
        dequantize("q0", "d1"),
        quantize("x", "q1"),
        dequantize("q1", "d2"),
        make("Relu", ["d0"], ["a"], name="a"),
        make("Neg", ["d1"], ["b"], name="b"),
        make("Add", ["a", "b"], ["c"], name="c"),
        make("Add", ["c", "d2"], ["y"], name="d"),
    ]
    source = model_of(nodes)
    model = load_calibrated(source)
    (item,) = model.calibrations.values()
    assert item.users == ("a", "b", "d")
    x = samples(SHAPE, 1)
    np.testing.assert_array_equal(run(model.proto, {"x": x})[0], run(source, {"x": x})[0])


def test_stored_codes_are_weights_and_int32_a_constant() -> None:
    nodes = [
        quantize("x", "q"),
        dequantize("q", "d"),
        make("DequantizeLinear", ["w_quantized", "s2", "z2"], ["w"], axis=0),
        make("DequantizeLinear", ["b_quantized", "s"], ["b"]),
        make("Gemm", ["d", "w", "b"], ["y"], name="head", transB=1),
    ]
    rng = np.random.default_rng(0)
    source = model_of(
        nodes,
        w_quantized=rng.integers(-128, 128, (4, 4)).astype(np.int8),
        b_quantized=rng.integers(-900, 900, 4).astype(np.int32),
        s2=np.array([0.1, 0.2, 0.3, 0.4], np.float32),
        z2=np.zeros(4, np.int8),
    )
    model = load_calibrated(source)
    weight = model.calibrations["w_HzCalibration"]
    assert (weight.kind, weight.is_stored, weight.axis, weight.bits) == ("weight", True, 0, 8)
    assert weight.users == ("head",)
    np.testing.assert_array_equal(weight.thresholds, weight.scales * np.float32(128))
    assert list(model.calibrations) == ["x_HzCalibration", "w_HzCalibration"]
    assert model.node("head").calibrations == ("x_HzCalibration", "w_HzCalibration")
    x = samples(SHAPE, 1)
    np.testing.assert_array_equal(run(model.proto, {"x": x})[0], run(source, {"x": x})[0])


def test_a_float_weight_behind_a_pair_is_switchable() -> None:
    nodes = [
        quantize("x", "q"),
        dequantize("q", "d"),
        quantize("w", "wq"),
        dequantize("wq", "wd"),
        make("MatMul", ["d", "wd"], ["y"], name="product"),
    ]
    model = load_calibrated(model_of(nodes, w=samples((4, 4), 2)))
    item = model.calibrations["w_HzCalibration"]
    assert (item.kind, item.is_stored, len(item.nodes)) == ("weight", False, 2)


@pytest.mark.parametrize("zero", [np.int8(0), np.int16(0)])
def test_quantize_nodes_of_onnxruntime_are_taken(zero: Any) -> None:
    """com.microsoft writes int16 in opsets that have none."""
    nodes = [
        quantize("x", "q", domain="com.microsoft"),
        dequantize("q", "d", domain="com.microsoft"),
        make("Relu", ["d"], ["y"], name="act"),
    ]
    source = model_of(nodes, zero, opset=13)
    model = load_calibrated(source)
    assert model.calibrations["x_HzCalibration"].bits == 8 * zero.itemsize
    x = samples(SHAPE, 1)
    np.testing.assert_array_equal(run(model.proto, {"x": x})[0], run(source, {"x": x})[0])
    imported = import_onnx(source)[0].feed({"x": x})["y"]
    np.testing.assert_array_equal(imported, run(source, {"x": x})[0])


def test_codes_that_are_moved_become_values_that_are_moved() -> None:
    nodes = [
        quantize("x", "q"),
        make("Transpose", ["q"], ["t"], name="turn", perm=[1, 0]),
        make("Reshape", ["t", "sizes"], ["r"], name="form"),
        dequantize("r", "d"),
        dequantize("q", "e"),
        make("Add", ["d", "e"], ["y"], name="plus"),
    ]
    source = model_of(nodes, np.int8(7), sizes=np.array(SHAPE))
    model = load_calibrated(source)
    assert list(model.calibrations) == ["x_HzCalibration"]
    assert [node.name for node in model.nodes] == ["turn", "form", "plus"]
    x = samples(SHAPE, 1)
    np.testing.assert_array_equal(run(model.proto, {"x": x})[0], run(source, {"x": x})[0])
    imported = import_onnx(source)[0].feed({"x": x})["y"]
    np.testing.assert_array_equal(imported, run(source, {"x": x})[0])


def test_pairs_on_two_grids_are_ordinary_nodes() -> None:
    nodes = [
        quantize("x", "q"),
        make("DequantizeLinear", ["q", "s2", "z"], ["d"], name="other"),
        quantize("d", "p"),
        dequantize("p", "y"),
    ]
    model = load_calibrated(model_of(nodes, s2=np.array(0.2, np.float32)))
    assert list(model.calibrations) == ["d_HzCalibration"]
    assert [node.op_type for node in model.nodes] == ["QuantizeLinear", "DequantizeLinear"]


STYLES: Mapping[str, Mapping[str, Any]] = {
    "int8": {},
    "uint8, reduced": {"activation_type": QuantType.QUInt8, "reduce_range": True},
    "uint8 weights": {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QUInt8},
    "int16": {"activation_type": QuantType.QInt16, "per_channel": True},
    "uint16, a pair each": {
        "activation_type": QuantType.QUInt16,
        "weight_type": QuantType.QInt16,
        "extra_options": {"DedicatedQDQPair": True},
    },
}


@pytest.mark.parametrize("style", STYLES)
def test_whatever_onnxruntime_writes_is_taken(
    style: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantized_files, "STYLES", STYLES)
    path = quantized_files.quantized_file(tmp_path, "plain", style)
    model = load_calibrated(path)
    assert not [node for node in model.nodes if "Linear" in node.op_type]
    assert len(model.names("weight")) == 3
    x = samples(quantized_files.NETS["plain"][1], 4)
    np.testing.assert_array_equal(run(model.proto, {"x": x})[0], run(str(path), {"x": x})[0])

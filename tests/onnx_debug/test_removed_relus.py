"""Files in which onnxruntime's quantizer took Relus out: their float form has them again."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

from qtune.onnx_debug import get_sensitivity_of_nodes
from qtune.onnx_debug.calibrated import CalibratedModel
from qtune.onnx_debug.data import CalibrationDataSet
from qtune.onnx_debug.load import load_calibrated
from qtune.onnx_debug.runner import Runner
from qtune.testing.onnx_float import float_form

from .test_load_pairs import dequantize, model_of, quantize, run

Array = np.ndarray[Any, Any]
make = helper.make_node

SHAPE = (1, 3, 8, 8)
ATOL = 2e-5  # float32 sums of up to 108 products of size 1 in another order; a step is 0.02


def net() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    sizes = {"w0": (8, 3, 3, 3), "w1": (8, 8, 3, 3), "w2": (4, 8, 1, 1)}
    weights = {name: rng.normal(0, 0.2, size).astype(np.float32) for name, size in sizes.items()}
    nodes = [
        make("Conv", ["x", "w0"], ["c0"], name="conv0", pads=[1] * 4),
        make("Relu", ["c0"], ["r0"], name="relu0"),
        make("MaxPool", ["r0"], ["m"], name="pool", kernel_shape=[2, 2], strides=[2, 2]),
        make("Conv", ["m", "w1"], ["c1"], name="conv1", pads=[1] * 4),
        make("Add", ["c1", "m"], ["s"], name="add"),
        make("Relu", ["s"], ["r1"], name="relu1"),
        make("Conv", ["r1", "w2"], ["y"], name="conv2"),
    ]
    info, kind = helper.make_tensor_value_info, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "net",
        [info("x", kind, SHAPE)],
        [info("y", kind, (1, 4, 4, 4))],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def data(count: int = 2) -> list[dict[str, Array]]:
    rng = np.random.default_rng(1)
    return [{"x": rng.normal(0, 1, SHAPE).astype(np.float32)} for _ in range(count)]


class _Reader(CalibrationDataReader):
    def __init__(self) -> None:
        self.items: Iterator[dict[str, Array]] = iter(data())

    def get_next(self) -> dict[str, Array] | None:
        return next(self.items, None)


@pytest.fixture(params=[QuantType.QUInt8, QuantType.QInt8])
def quantized(request: pytest.FixtureRequest, tmp_path: Path) -> onnx.ModelProto:
    """The net as onnxruntime writes it, its weights as floats behind pairs."""
    target = tmp_path / "net.onnx"
    logging.disable(logging.WARNING)
    try:
        quantize_static(
            net(),
            target,
            _Reader(),
            activation_type=request.param,
            extra_options={"AddQDQPairToWeight": True},
        )
    finally:
        logging.disable(logging.NOTSET)
    return onnx.load(target)


def test_the_float_side_is_the_float_model(quantized: onnx.ModelProto) -> None:
    assert "Relu" not in {node.op_type for node in quantized.graph.node}
    model, feeds = load_calibrated(quantized), data()
    runner = Runner(model, CalibrationDataSet(feeds, model.inputs))
    stripped = float_form(model)
    for index, feed in enumerate(feeds):
        (expected,) = run(net(), feed)
        np.testing.assert_allclose(runner.values(index)["y"], expected, rtol=0, atol=ATOL)
        np.testing.assert_allclose(run(stripped, feed)[0], expected, rtol=0, atol=ATOL)
        reads = {tensor: plain for tensor, plain, _ in runner.stream(index, (), ["r0", "r1"])}
        assert all(array.min() == 0 for array in reads.values())  # what distributions show


def test_the_calibrated_side_stays_the_file(quantized: onnx.ModelProto) -> None:
    model, (feed,) = load_calibrated(quantized), data(1)
    np.testing.assert_array_equal(run(model.proto, feed)[0], run(quantized, feed)[0])


def test_nodes_and_tensors_are_named_as_in_the_float_model(quantized: onnx.ModelProto) -> None:
    model = load_calibrated(quantized)
    assert [node.op_type for node in model.nodes] == [node.op_type for node in net().graph.node]
    assert model.calibrations["r0_HzCalibration"].source == "r0"
    assert model.node("r0_Relu").outputs == ("r0",)


def test_sensitivities_tell_the_rounding_not_the_relu(quantized: onnx.ModelProto) -> None:
    found = get_sensitivity_of_nodes(quantized, "sqnr", data(1), node_type="activation")
    assert found["r0_HzCalibration"]["sqnr"] > 35  # without the Relu about 3; int8 gives about 40


def one_sided(*nodes: onnx.NodeProto, **constants: Any) -> CalibratedModel:
    return load_calibrated(model_of(nodes, np.uint8(0), **constants))


def relus(model: CalibratedModel) -> list[str]:
    return [node.name for node in model.nodes if node.name.endswith("_Relu")]


def test_others_that_read_the_tensor_get_it_as_it_is() -> None:
    nodes = [
        make("Neg", ["x"], ["n"], name="neg"),
        quantize("n", "q"),
        dequantize("q", "d"),
        make("Add", ["d", "n"], ["y"], name="add"),
    ]
    model = one_sided(*nodes)
    x = np.array([[1.0, -2.0, 3.04, -4.06], [0.0, -0.05, 40.0, 9.0]], np.float32)
    runner = Runner(model, CalibrationDataSet([x], model.inputs))
    np.testing.assert_array_equal(runner.values(0)["y"], np.maximum(-x, 0) - x)
    file = run(model_of(nodes, np.uint8(0)), {"x": x})[0]
    np.testing.assert_array_equal(runner.values(0, model.calibrations)["y"], file)


def test_nan_passes() -> None:
    model = one_sided(
        make("Log", ["x"], ["n"], name="log"),
        quantize("n", "q"),
        dequantize("q", "d"),
        make("Identity", ["d"], ["y"], name="same"),
    )
    assert relus(model) == ["n_Relu"]
    x = np.array([[-1.0, 1.0, 0.5, 0.0], [-2.0, -3.0, 1.0, -9.0]], np.float32)
    runner = Runner(model, CalibrationDataSet([x], model.inputs))
    nan = np.nan
    np.testing.assert_array_equal(runner.values(0)["y"], [[nan, 0, 0, 0], [nan, nan, 0, nan]])


@pytest.mark.parametrize("before", ["Relu", "Sigmoid", "Abs"])
def test_what_is_never_negative_needs_none(before: str) -> None:
    model = one_sided(
        make(before, ["x"], ["n"], name="before"),
        quantize("n", "q"),
        dequantize("q", "d"),
        make("Reshape", ["d", "sizes"], ["m"], name="form"),
        quantize("m", "p"),
        dequantize("p", "e"),
        make("Neg", ["e"], ["y"], name="neg"),
        sizes=np.array([2, 4]),
    )
    assert not relus(model)


def test_inputs_and_constants_have_none_before_them() -> None:
    model = one_sided(
        quantize("x", "q"),
        dequantize("q", "d"),
        quantize("w", "p"),
        dequantize("p", "e"),
        make("Mul", ["d", "e"], ["y"], name="mul"),
        w=np.full((2, 4), -0.5, np.float32),
    )
    assert not relus(model)


def test_other_zero_points_need_none() -> None:
    nodes = [
        make("Neg", ["x"], ["n"], name="neg"),
        quantize("n", "q"),
        dequantize("q", "d"),
        make("Neg", ["d"], ["y"], name="last"),
    ]
    for zero, count in ((np.uint8(1), 0), (np.int8(0), 0), (np.int8(-128), 1), (np.uint16(0), 1)):
        assert len(relus(load_calibrated(model_of(nodes, zero)))) == count

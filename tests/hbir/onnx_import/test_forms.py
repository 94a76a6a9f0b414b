"""Forms of QDQ files beside the usual one: several results, pairs and grids, float weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from qtune.bpu import compiler
from qtune.bpu.ort import run_in_onnxruntime
from qtune.errors import OnnxImportError
from qtune.hbir.module import HbirModule
from qtune.hbir.onnx_import import import_onnx

from .quantized_files import graph_of, samples

Array = np.ndarray[Any, Any]

make = onnx.helper.make_node
SHAPE = (2, 4, 3, 3)
GRIDS = {
    "s": np.array(0.02, np.float32),
    "z": np.array(3, np.int8),
    "t": np.array(0.05, np.float32),
    "none": np.array(0, np.int8),
}


def pair(source: str, result: str, scale: str = "s", zero: str = "z") -> list[onnx.NodeProto]:
    return [
        make("QuantizeLinear", [source, scale, zero], [f"{result}_q"]),
        make("DequantizeLinear", [f"{result}_q", scale, zero], [result]),
    ]


def converted(model: onnx.ModelProto, x: Array) -> tuple[HbirModule, Array, Array]:
    """The imported module, and what it and the file give; the integers agree on every kernel."""
    module = import_onnx(model)
    (got,) = module[0].feed({"x": x}).values()
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (expected,) = session.run(None, {"x": x})
    integers = compiler.convert(module, "nash-e")
    (fast,) = integers[0].feed({"x": x}).values()
    (exact,) = integers[0].run({"x": x}, mode="reference").values()
    (by_ort,) = run_in_onnxruntime(integers, {"x": x}).values()
    np.testing.assert_array_equal(fast, exact.numpy())
    np.testing.assert_array_equal(fast, by_ort)
    return module, got, np.asarray(expected)


def test_each_result_of_an_operator_has_a_grid_of_its_own() -> None:
    nodes = [
        *pair("x", "xd"),
        make("Split", ["xd"], ["a", "b"], axis=1, num_outputs=2, name="cut"),
        *pair("a", "ad"),
        *pair("b", "bd", "t"),
        make("Concat", ["bd", "ad"], ["c"], axis=1, name="join"),
        *pair("c", "y"),
    ]
    module, got, expected = converted(graph_of(nodes, SHAPE, GRIDS), samples(SHAPE, 0))
    np.testing.assert_array_equal(got, expected)
    assert module[0].operator_names() == ["x_quant", "cut", "b_quant", "join"]


def test_a_pair_for_each_reader_is_one_grid() -> None:
    nodes = [
        *pair("x", "x1"),
        *pair("x", "x2"),
        *pair("x", "x3", "t"),
        make("Mul", ["x1", "x2"], ["p"], name="mul"),
        *pair("p", "pd", "t"),
        make("Add", ["pd", "x3"], ["r"], name="add"),
        *pair("r", "y", "t"),
    ]
    module, got, expected = converted(graph_of(nodes, SHAPE, GRIDS), samples(SHAPE, 1))
    np.testing.assert_array_equal(got, expected)
    assert module[0].operator_names() == ["x_quant", "x_quant_1", "mul", "add"]


@pytest.mark.parametrize("channels", [False, True])
def test_float_weights_behind_a_pair_are_weights(channels: bool) -> None:
    rng = np.random.default_rng(2)
    weight = rng.standard_normal((5, 4, 1, 1)).astype(np.float32)
    scale = np.abs(weight).max((1, 2, 3)) / 127 if channels else np.abs(weight).max() / 127
    constants = {
        **GRIDS,
        "w": weight,
        "ws": np.asarray(scale, np.float32),
        "wz": np.zeros(np.shape(scale), np.int8),
    }
    axis = {"axis": 0} if channels else {}
    nodes = [
        *pair("x", "xd"),
        make("QuantizeLinear", ["w", "ws", "wz"], ["wq"], **axis),
        make("DequantizeLinear", ["wq", "ws", "wz"], ["wd"], **axis),
        make("Conv", ["xd", "wd"], ["c"], name="conv"),
        *pair("c", "y", "t", "none"),
    ]
    model = graph_of(nodes, SHAPE, constants, result=(2, 5, 3, 3))
    module, got, expected = converted(model, samples(SHAPE, 3))
    # float sums in another order: a tie of the last rounding may fall the other way
    assert np.abs(got - expected).max() <= 0.05 * (1 + 1e-6)
    assert (got != expected).mean() < 0.05
    kinds = [node.op_type for node in compiler.convert(module, "nash-e").model.graph]
    assert kinds == ["QuantizeHalfEven", "QConv16x8", "Dequantize"]


@pytest.mark.parametrize("opset", [17, 21])
def test_layer_norm_of_constant_weights_is_replaced_by_its_definition(opset: int) -> None:
    nodes = [make("LayerNormalization", ["x", "w"], ["y"], name="norm")]
    model = graph_of(nodes, SHAPE, {"w": np.array([1, 2, 3], np.float32)}, opset)
    x = samples(SHAPE, 4)
    (got,) = import_onnx(model)[0].feed({"x": x}).values()
    centred = x - x.mean(-1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * [1, 2, 3]
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)  # float32 sums


def test_an_input_that_is_an_output_keeps_its_shape() -> None:
    model = graph_of([make("Relu", ["x"], ["y"])], SHAPE, {})
    model.graph.output.append(model.graph.input[0])
    x = samples(SHAPE, 5)
    positive, same = import_onnx(model)[0].feed({"x": x}).values()
    np.testing.assert_array_equal(positive, np.maximum(x, 0))
    np.testing.assert_array_equal(same, x)


def test_an_operator_without_integer_rule_between_grids_is_listed() -> None:
    """Codes with a zero point are carried as int16, which resize does not take."""
    sizes = np.array([2, 4, 6, 6], np.int64)
    nodes = [
        *pair("x", "xd"),
        make("Resize", ["xd", "", "", "sizes"], ["r"], name="up", mode="linear"),
        *pair("r", "y"),
    ]
    model = graph_of(nodes, SHAPE, {**GRIDS, "sizes": sizes}, result=(2, 4, 6, 6))
    report = compiler.convert(import_onnx(model), "nash-e").report
    assert [(note["op"], note["kind"]) for note in report] == [("up", "stays float")]


def test_a_module_of_qtune_is_no_file_of_another_tool(tmp_path: Path) -> None:
    module = import_onnx(graph_of([make("Relu", ["x"], ["y"])], SHAPE, {}))
    compiler.save(module, tmp_path / "net.bc")
    (tmp_path / "net.bc").rename(tmp_path / "net.onnx")
    with pytest.raises(OnnxImportError, match=r"net\.onnx is a module of qtune"):
        compiler.load(tmp_path / "net.onnx")

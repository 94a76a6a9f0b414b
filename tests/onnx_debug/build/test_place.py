"""Where calibration nodes sit, and which grids they hold."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

from qtune.bpu.compiler import convert
from qtune.hbir.onnx_import import import_onnx
from qtune.onnx_debug import insert_calibration
from qtune.onnx_debug.load import load_calibrated

from .models import classifier, items, model, weights

make = helper.make_node


def test_the_classifier_has_its_nodes_where_integers_are_read() -> None:
    made = load_calibrated(insert_calibration(classifier(), items(1, 3, 8, 8)))
    users = {name: node.users for name, node in made.calibrations.items()}
    assert users == {
        "x_HzCalibration": ("stem",),
        "w0_HzCalibration": ("stem",),
        "r0_HzCalibration": ("pool",),
        "p_HzCalibration": ("twin", "twin_1"),
        "w1_HzCalibration": ("twin",),
        "r1_HzCalibration": ("GlobalAveragePool_7",),
        "gp_HzCalibration": ("Flatten_8",),
        "f_HzCalibration": ("head",),
        "w2_HzCalibration": ("head",),
    }
    assert [n.kind for n in made.calibrations.values()].count("weight") == 3


def test_thresholds_are_the_largest_magnitudes_and_scales_that_by_127_and_a_half() -> None:
    data = items(1, 3, 8, 8)
    data[1][0, 2, 3, 4] = -7.5
    made = load_calibrated(insert_calibration(classifier(), data))
    x = made.calibrations["x_HzCalibration"]
    assert x.thresholds.tolist() == [7.5]
    assert x.axis == -1
    np.testing.assert_array_equal(x.scales, np.float32([7.5]) / np.float32(127.5))
    w = made.calibrations["w1_HzCalibration"]
    absmax = np.abs(weights(4, 4, 3, 3, seed=3)).max(axis=(1, 2, 3))
    assert w.axis == 0
    np.testing.assert_array_equal(w.thresholds, absmax)
    np.testing.assert_array_equal(w.scales, absmax / np.float32(127.5))


def test_a_pool_and_a_flatten_keep_the_grid_of_their_input_and_convert_to_no_requantize() -> None:
    proto = insert_calibration(classifier(), items(1, 3, 8, 8))
    made = load_calibrated(proto).calibrations
    for before, after in (("r0", "p"), ("gp", "f")):
        first, second = (made[f"{name}_HzCalibration"] for name in (before, after))
        assert first.scales.tolist() == second.scales.tolist()
    integers = convert(import_onnx(proto), "nash-e")
    kinds = [node.op_type for node in integers.model.graph]
    assert kinds == [
        "Quantize",
        "QConv",
        "QMaxPool",
        "QConvAdd",
        "QAvgPool",
        "Reshape",
        "QLinearAcc",
        "DequantizeAcc",
    ]


@pytest.mark.parametrize("names", [("", "", ""), ("same", "same", "same")])
def test_two_calls_give_equal_models_with_unique_names(names: tuple[str, str, str]) -> None:
    nodes = [
        make("Conv", ["x", "w0"], ["a"], pads=[1] * 4, name=names[0]),
        make("Relu", ["a"], ["b"], name=names[1]),
        make("Conv", ["b", "w1"], ["y"], pads=[1] * 4, name=names[2]),
    ]
    constants = {"w0": weights(3, 3, 3, 3), "w1": weights(3, 3, 3, 3, seed=1)}
    source = model(nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 3, 8, 8]}, constants)
    before = source.SerializeToString()
    first, second = insert_calibration(source), insert_calibration(source)
    assert source.SerializeToString() == before
    assert first.SerializeToString() == second.SerializeToString()
    onnx.checker.check_model(first)
    ort.InferenceSession(first.SerializeToString(), providers=["CPUExecutionProvider"])
    assert len({node.name for node in first.graph.node}) == len(first.graph.node) == 7


def test_shared_weights_have_one_node_and_a_shared_bias_none() -> None:
    nodes = [
        make("Conv", ["x", "w", "b"], ["c"], pads=[1] * 4, name="one"),
        make("Relu", ["c"], ["r"]),
        make("Conv", ["r", "w", "b"], ["y"], pads=[1] * 4, name="two"),
    ]
    constants = {"w": weights(3, 3, 3, 3), "b": weights(3)}
    proto = insert_calibration(
        model(nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 3, 8, 8]}, constants), items(1, 3, 8, 8)
    )
    made = load_calibrated(proto)
    assert made.calibrations["w_HzCalibration"].users == ("one", "two")
    assert sorted(made.calibrations) == ["r_HzCalibration", "w_HzCalibration", "x_HzCalibration"]
    convs = [node for node in proto.graph.node if node.op_type == "Conv"]
    assert [node.input[2] for node in convs] == ["b", "b"]
    x = items(1, 3, 8, 8, count=1)[0]
    integers = convert(import_onnx(proto), "nash-e")[0].feed({"x": x})["y"]
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    (floats,) = session.run(None, {"x": x})
    # both brings the bias to its own accumulator; codes at a border may fall either way
    scale = float(made.calibrations["r_HzCalibration"].scales[0])
    assert np.abs(integers - floats).max() < 4 * scale


def test_gemm_weights_have_their_scales_along_the_output_channels() -> None:
    nodes = [
        make("Gemm", ["x", "w"], ["g"], name="plain"),
        make("MatMul", ["g", "m"], ["h"], name="matrix"),
        make("Gemm", ["h", "t"], ["y"], transB=1, name="turned"),
    ]
    constants = {"w": weights(4, 3), "m": weights(3, 5), "t": weights(2, 5)}
    made = load_calibrated(
        insert_calibration(model(nodes, {"x": [2, 4]}, {"y": [2, 2]}, constants), items(2, 4))
    )
    found = {name: (n.axis, n.scales.size) for name, n in made.calibrations.items()}
    assert found["w_HzCalibration"] == (1, 3)
    assert found["m_HzCalibration"] == (1, 5)
    assert found["t_HzCalibration"] == (0, 2)


def test_an_operator_without_integers_stays_float_between_quantized_ones() -> None:
    nodes = [
        make("MatMul", ["x", "w"], ["a"], name="q"),
        make("Exp", ["a"], ["e"], name="positive"),
        make("Pow", ["e", "a"], ["p"], name="power"),
        make("MatMul", ["p", "x"], ["y"], name="mix"),
    ]
    source = model(nodes, {"x": [1, 4, 4]}, {"y": [1, 4, 4]}, {"w": weights(4, 4)})
    config = {"op_config": {"Exp": {"qtype": "float32"}}}
    made = load_calibrated(insert_calibration(source, items(1, 4, 4), quant_config=config))
    assert made.calibrations["x_HzCalibration"].users == ("q", "mix")
    assert made.calibrations["p_HzCalibration"].users == ("mix",)
    assert "a_HzCalibration" not in made.calibrations


def test_an_inner_output_of_the_model_keeps_its_name_on_its_grid() -> None:
    nodes = [
        make("Conv", ["x", "w"], ["c"], pads=[1] * 4, name="conv"),
        make("Sigmoid", ["c"], ["gate"], name="sigmoid"),
        make("Conv", ["gate", "w"], ["y"], pads=[1] * 4, name="last"),
    ]
    sizes = {"gate": [1, 3, 8, 8], "y": [1, 3, 8, 8]}
    proto = insert_calibration(
        model(nodes, {"x": [1, 3, 8, 8]}, sizes, {"w": weights(3, 3, 3, 3)}), items(1, 3, 8, 8)
    )
    assert [info.name for info in proto.graph.output] == ["gate", "y"]
    made = load_calibrated(proto)
    node = made.calibrations["gate_HzCalibration"]
    assert (node.output, node.users) == ("gate", ("last",))
    x = items(1, 3, 8, 8, count=1)[0]
    got = convert(import_onnx(proto), "nash-e")[0].feed({"x": x})
    codes = got["gate"] / node.scales[0]
    np.testing.assert_allclose(codes, np.rint(codes), atol=1e-4)  # float32 of code * scale


def test_a_channel_of_zeros_has_the_scale_of_an_empty_range() -> None:
    w = weights(3, 3, 1, 1)
    w[1] = 0
    source = model(
        [make("Conv", ["x", "w"], ["y"])], {"x": [1, 3, 4, 4]}, {"y": [1, 3, 4, 4]}, {"w": w}
    )
    proto = insert_calibration(source, items(1, 3, 4, 4))
    scales = load_calibrated(proto).calibrations["w_HzCalibration"].scales
    assert scales[1] == np.float32(2.0**-23)
    assert numpy_helper.to_array(proto.graph.initializer[0]).shape == (3, 3, 1, 1)

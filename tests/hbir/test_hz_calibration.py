"""``HzCalibration``: what it computes, its body in onnxruntime, what it refuses to hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from qtune.errors import OnnxImportError
from qtune.hbir import hz_calibration
from qtune.hbir.hz_calibration import Calibration, apply, calibration_of, make_node

Array = np.ndarray[Any, Any]


def held(scales: list[float], bits: int = 8, axis: int = -1) -> Calibration:
    array = np.asarray(scales, np.float32)
    return Calibration(array, array * np.float32(2 ** (bits - 1)), bits, axis)


def model_of(node: onnx.NodeProto, shape: tuple[int, ...]) -> onnx.ModelProto:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "y")]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    hz_calibration.declare(model)
    return model


def by_onnxruntime(calibration: Calibration, x: Array) -> Array:
    onnxruntime = pytest.importorskip("onnxruntime")
    model = model_of(make_node("c", "x", "y", calibration), x.shape)
    onnx.checker.check_model(model, full_check=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    (y,) = session.run(["y"], {"x": x})
    return np.asarray(y)


ROUNDED = {-1.5: -1, -0.5: 0, -0.25: 0, 0.0: 0, 0.5: 1, 1.5: 2, 2.4: 2, 126.5: 127, 300: 127}
"""Ties go up, in steps of 8 bits."""


def test_ties_go_up_and_codes_saturate() -> None:
    steps = np.array([*ROUNDED, -128.5, -200, np.inf, -np.inf], np.float32)
    found = apply(held([0.25]), steps * np.float32(0.25))
    assert (found / 0.25).tolist() == [*ROUNDED.values(), -128, -128, 127, -128]
    assert found.dtype == np.float32
    assert np.isnan(apply(held([0.25]), np.array([np.nan], np.float32))).all()


@pytest.mark.parametrize(("bits", "low", "high"), [(4, -8, 7), (8, -128, 127), (16, -32768, 32767)])
def test_each_width_has_its_own_ends(bits: int, low: int, high: int) -> None:
    calibration = held([0.5], bits)
    assert (calibration.qmin, calibration.qmax) == (low, high)
    assert apply(calibration, np.array([-1e6, 1e6], np.float32)).tolist() == [low / 2, high / 2]


def test_one_scale_of_8_bits_is_what_is_meant_by_default() -> None:
    found = Calibration(np.ones(1, np.float32), np.full(1, 128, np.float32))
    assert (found.bits, found.axis, found.along(0).shape) == (8, -1, ())


def test_each_channel_has_its_own_step_along_the_axis() -> None:
    x = np.full((2, 3), 10, np.float32)
    assert apply(held([3, 4, 6], axis=1), x).tolist() == [[9, 12, 12]] * 2
    assert apply(held([3, 4], axis=0), x).tolist() == [[9] * 3, [12] * 3]


@pytest.mark.parametrize("bits", [4, 8, 16])
@pytest.mark.parametrize(
    ("shape", "axis"), [((), -1), ((0, 3), 1), ((3, 5, 4), 0), ((2, 3, 4), 1), ((7, 3), -1)]
)
def test_the_body_in_onnxruntime_gives_the_same_bits(
    shape: tuple[int, ...], axis: int, bits: int
) -> None:
    calibration = held([0.013, 0.5, 3e-4] if axis >= 0 else [0.013], bits, axis)
    x = np.random.default_rng(0).normal(scale=2, size=shape).astype(np.float32)
    if x.size > 3:
        x.flat[:3] = np.nan, np.inf, -np.inf
    found = by_onnxruntime(calibration, x)
    assert found.shape == shape
    assert np.array_equal(found.view(np.int32), apply(calibration, x).view(np.int32))


def node_with(**attributes: Any) -> onnx.NodeProto:
    return helper.make_node("HzCalibration", ["x"], ["y"], name="c", domain="any", **attributes)


def test_what_a_node_holds_comes_back() -> None:
    calibration = Calibration(
        np.array([0.25, 0.5], np.float32), np.array([31, 63], np.float32), 16, 2
    )
    found = calibration_of(make_node("c", "x", "y", calibration))
    assert found.scales.tolist() == [0.25, 0.5]
    assert found.thresholds.tolist() == [31, 63]
    assert (found.bits, found.axis, found.threshold) == (16, 2, 63)


def test_what_is_left_out_follows_from_the_rest() -> None:
    by_threshold = calibration_of(node_with(thresholds=[4.0]))
    assert (by_threshold.scales.tolist(), by_threshold.bits, by_threshold.axis) == ([2**-5], 8, -1)
    assert calibration_of(node_with(threshold=4.0, bits=16)).scales.tolist() == [2**-13]
    assert calibration_of(node_with(scale=0.5)).thresholds.tolist() == [64]
    assert calibration_of(node_with(scales=[0.5], bits=4)).thresholds.tolist() == [4]
    assert calibration_of(node_with(scales=[0.5], axis=1)).axis == -1  # one scale has no axis


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({"bits": 8}, "needs scales or thresholds, it has the attributes bits"),
    "a zero": ({"thresholds": [1.0, 0.0], "axis": 0}, "threshold of channel 1 is 0; it must be"),
    "a negative": ({"scales": [-1.0], "thresholds": [1.0]}, "c: its scale is -1; it must be"),
    "NaN": ({"scales": [float("nan")], "thresholds": [1.0]}, "c: its scale is nan"),
    "infinity": ({"threshold": float("inf")}, "c: its threshold is inf"),
    "a threshold too small for a scale": ({"threshold": 1e-45}, "c: its scale is 0"),
    "other bits": ({"scales": [1.0], "bits": 5}, "c: bits is 5; expected 4, 8 or 16"),
    "no bits": ({"threshold": 1.0, "bits": 0}, "c: bits is 0; expected 4, 8 or 16"),
    "two counts": ({"scales": [1.0], "thresholds": [1.0, 2.0]}, "1 scales, 2 thresholds"),
    "no axis": ({"scales": [1.0, 2.0]}, "c: 2 scales need an axis from 0 on"),
    "an axis from behind": ({"scales": [1.0, 2.0], "axis": -1}, "need an axis from 0 on"),
    "a text": ({"scales": "1.0", "bits": "eight"}, "no attributes of a calibration node; bits"),
    "lists": ({"scales": [1.0], "bits": [8]}, "no attributes of a calibration node; bits"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_makes_no_sense_is_refused_by_name(case: str) -> None:
    attributes, message = REFUSED[case]
    with pytest.raises(OnnxImportError, match=message):
        calibration_of(node_with(**attributes))


def test_no_node_is_made_of_what_makes_no_sense() -> None:
    with pytest.raises(OnnxImportError, match="c: its threshold is 0"):
        make_node("c", "x", "y", held([0]))
    with pytest.raises(OnnxImportError, match="c: bits is 5"):
        make_node("c", "x", "y", held([1], 5))


@pytest.mark.parametrize("shape", [(2, 4), (3,), ()])
def test_channels_must_be_those_of_the_tensor(shape: tuple[int, ...]) -> None:
    calibration = held([1, 2, 3], axis=1)
    with pytest.raises(OnnxImportError, match=r"c: 3 scales along axis 1 don't fit .*\["):
        hz_calibration.check_axis("c", calibration, shape)
    with pytest.raises(OnnxImportError, match="c: 3 scales along axis 0 don't fit"):
        hz_calibration.check_axis("c", held([1, 2, 3], axis=0), (2, 3))
    hz_calibration.check_axis("c", calibration, (5, 3))
    hz_calibration.check_axis("c", held([1]), shape)


def test_a_files_own_body_gives_way_to_ours_and_other_functions_stay() -> None:
    other = onnx.parser.parse_function('<domain: "d", opset_import: ["" : 21]> F (x) => (y) {}')
    model = model_of(node_with(scales=[1.0], thresholds=[128.0], bits=8, axis=-1), (2,))
    foreign = onnx.FunctionProto.FromString(model.functions[0].SerializeToString())
    foreign.domain = "any"
    del model.functions[:]
    model.functions.extend([foreign, other])
    hz_calibration.declare(model)
    assert [(item.domain, item.name) for item in model.functions] == [
        ("d", "F"),
        ("qtune", "HzCalibration"),
    ]
    assert model.graph.node[0].domain == "qtune"
    assert [entry.domain for entry in model.opset_import].count("qtune") == 1


def test_a_model_without_calibration_stays_as_it_is() -> None:
    model = model_of(helper.make_node("Relu", ["x"], ["y"]), (2,))
    assert not model.functions
    assert [entry.domain for entry in model.opset_import] == [""]


def test_hidden_nodes_are_identities() -> None:
    model = model_of(make_node("c", "x", "y", held([1])), (2,))
    model.graph.node.append(helper.make_node("LeakyRelu", ["y"], ["z"], alpha=0.5))
    hz_calibration.hide(model)
    node, other = model.graph.node
    assert (other.op_type, len(other.attribute)) == ("LeakyRelu", 1)
    assert (node.op_type, node.domain, node.name, len(node.attribute)) == ("Identity", "", "c", 0)

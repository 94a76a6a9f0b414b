"""Files that are quantized already, wholly or in parts: their grids stay, the rest is built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from qtune.bpu.convert import convert
from qtune.errors import ArgumentError
from qtune.hbir import hz_calibration
from qtune.hbir.onnx_import import import_onnx
from qtune.onnx_debug import build_model, get_sensitivity_of_nodes
from qtune.onnx_debug.build.result import BuildResult

from ...hbir.onnx_import.quantized_files import NETS, STYLES, quantized_file, samples
from ..nets_qdq import as_pairs
from .models import classifier, items, model, weights

make = helper.make_node


def build(source: Any, data: Any, config: Any = None, march: str = "nash-e") -> BuildResult:
    result = build_model(
        source, march, data, config, save_model=False, verbose=False, return_builder=True
    )
    assert isinstance(result, BuildResult)
    return result


def same_integers(source: Any, result: BuildResult, data: dict[str, Any]) -> None:
    expected = convert(import_onnx(source), str(result.march))
    for index in range(len(next(iter(data.values())))):
        item = {name: arrays[index] for name, arrays in data.items()}
        wanted, got = expected[0].feed(item), result.quantized[0].feed(item)
        for name, array in wanted.items():
            np.testing.assert_array_equal(got[name], array)


def kinds(proto: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in proto.graph.node]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("net", NETS)
def test_a_wholly_quantized_file_keeps_its_integers(net: str, style: str, tmp_path: Path) -> None:
    file = quantized_file(tmp_path, net, style)
    data = {"x": [samples(NETS[net][1], seed) for seed in range(3)]}
    result = build(file, data)
    assert "HzCalibration" not in kinds(result.calibrated)
    assert result.info["calibration"]["chosen_by"] == "file"
    same_integers(str(file), result, data)
    pairs_left = {"QuantizeLinear", "DequantizeLinear"}.intersection(kinds(result.optimized))
    assert not pairs_left
    assert all(row.on == "BPU" for row in result.nodes if row.threshold is not None)


@pytest.mark.parametrize("stored", ["", "w1"])
def test_pairs_of_a_calibrated_model_stay_pairs(stored: str) -> None:
    data = {"x": items(1, 3, 8, 8)}
    file = as_pairs(build(classifier(), data).calibrated, stored=stored)
    result = build(file, data)
    same_integers(file, result, data)
    table = get_sensitivity_of_nodes(result.calibrated, calibrated_data=data)
    assert set(table) >= {"stem", "head"}


def test_a_calibrated_model_is_built_as_it_is() -> None:
    data = {"x": items(1, 3, 8, 8)}
    first = build(classifier(), data)
    again = build(first.calibrated, {"x": items(1, 3, 8, 8, count=1)})
    held = [
        {
            node.name: hz_calibration.calibration_of(node).scales.tolist()
            for node in proto.graph.node
            if node.op_type == "HzCalibration"
        }
        for proto in (first.calibrated, again.calibrated)
    ]
    assert held[0] == held[1]
    same_integers(first.calibrated, again, data)
    assert kinds(again.optimized) == kinds(first.optimized)


def test_a_threshold_that_was_edited_counts_and_nothing_else_changes() -> None:
    data = {"x": items(1, 3, 8, 8)}
    edited = build(classifier(), data).calibrated
    node = next(n for n in edited.graph.node if n.name == "x_HzCalibration")
    attributes = {item.name: item for item in node.attribute}
    attributes["thresholds"].floats[:] = [1.0]
    with pytest.raises(ArgumentError, match="x_HzCalibration: its threshold 1 contradicts"):
        build(edited, data)
    node.attribute.remove(attributes["scales"])
    result = build(edited, data)
    same_integers(edited, result, data)
    row = next(row for row in result.nodes if row.node == "stem")
    assert row.threshold == 1.0
    made = next(n for n in result.calibrated.graph.node if n.name == "x_HzCalibration")
    assert hz_calibration.calibration_of(made).scales.tolist() == [1 / 128]


def two_convs(**grids: Any) -> onnx.ModelProto:
    """x, a pair, Conv (its weight stored), a pair, Conv in float, Relu, Conv in float."""
    nodes = [
        make("QuantizeLinear", ["x", "s", "z"], ["xq"], name="q"),
        make("DequantizeLinear", ["xq", "s", "z"], ["xd"], name="d"),
        make("DequantizeLinear", ["w0", "ws"], ["w0d"], name="dw"),
        make("Conv", ["xd", "w0d"], ["c0"], name="first"),
        make("QuantizeLinear", ["c0", "s", "z"], ["cq"], name="q1"),
        make("DequantizeLinear", ["cq", "s", "z"], ["cd"], name="d1"),
        make("Conv", ["cd", "w1"], ["c1"], name="second"),
        make("Relu", ["c1"], ["r"], name="act"),
        make("Conv", ["r", "w2"], ["y"], name="third"),
    ]
    constants = {
        "s": np.float32(0.05),
        "z": np.int8(0),
        "w0": np.random.default_rng(0).integers(-128, 128, (4, 3, 1, 1)).astype(np.int8),
        "ws": np.float32(0.01),
        "w1": weights(4, 4, 1, 1, seed=1),
        "w2": weights(2, 4, 1, 1, seed=2),
        **grids,
    }
    return model(nodes, {"x": [1, 3, 4, 4]}, {"y": [1, 2, 4, 4]}, constants)


def test_what_has_no_pairs_is_calibrated_by_the_build() -> None:
    result = build(two_convs(), {"x": items(1, 3, 4, 4)})
    assert [row.on for row in result.nodes] == ["BPU"] * 4
    made = [n.input[0] for n in result.calibrated.graph.node if n.op_type == "HzCalibration"]
    assert made == ["w1", "r", "w2"]
    assert sum(kind == "DequantizeLinear" for kind in kinds(result.calibrated)) == 3
    assert result.info["kept"] == ["c0", "w0", "x"]


def test_load_takes_the_grids_of_the_file_alone() -> None:
    load = {"model_config": {"activation": {"calibration_type": "load"}}}
    result = build(two_convs(), None, load)
    assert [row.on for row in result.nodes] == ["BPU", "CPU", "CPU", "CPU"]
    assert "the file has no grid for w1" in result.info["stays_float"]["second"]
    assert "HzCalibration" not in kinds(result.calibrated)
    with pytest.raises(ArgumentError, match="load takes the grids that the model has; it has none"):
        build(classifier(), None, load)


def test_another_reader_of_a_tensor_reads_it_on_the_files_grid() -> None:
    grid = {"s": np.float32(0.05), "z": np.int8(0)}
    nodes = [
        make("Conv", ["x", "w"], ["c"], name="conv"),
        make("QuantizeLinear", ["c", "s", "z"], ["q"], name="q"),
        make("DequantizeLinear", ["q", "s", "z"], ["d"], name="d"),
        make("Conv", ["d", "v"], ["y"], name="left"),
        make("MaxPool", ["c"], ["p"], kernel_shape=[2, 2], strides=[2, 2], name="pool"),
        make("Conv", ["p", "v"], ["z1"], name="right"),
    ]
    constants = {"w": weights(2, 2, 1, 1), "v": weights(2, 2, 1, 1, seed=1), **grid}
    net = model(nodes, {"x": [1, 2, 4, 4]}, {"y": [1, 2, 4, 4], "z1": [1, 2, 2, 2]}, constants)
    result = build(net, {"x": items(1, 2, 4, 4)})
    made = [n.input[0] for n in result.calibrated.graph.node if n.op_type == "HzCalibration"]
    assert made == ["x", "w", "v"]
    pool = next(n for n in result.calibrated.graph.node if n.name == "pool")
    assert pool.input[0] == "d"
    assert {row.on for row in result.nodes} == {"BPU"}


@pytest.mark.parametrize(
    ("constants", "reason"),
    [
        ({"s": np.full(3, 0.05, np.float32), "z": np.zeros(3, np.int8)}, "3 scales; the BPU takes"),
        ({"s": np.float32(1e-3), "z": np.uint16(300)}, "don't fit in 16 bits less it"),
    ],
)
def test_a_grid_without_form_leaves_its_readers_float(
    constants: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = [
        make("QuantizeLinear", ["x", "s", "z"], ["xq"], name="q"),
        make("DequantizeLinear", ["xq", "s", "z"], ["xd"], name="d"),
        make("Conv", ["xd", "w"], ["c"], name="first"),
        make("Conv", ["c", "v"], ["y"], name="second"),
    ]
    held = {"w": weights(3, 3, 1, 1), "v": weights(3, 3, 1, 1, seed=1), **constants}
    shape = [1, 3, 4, 4]
    net = model(nodes, {"x": shape}, {"y": shape}, held, opset=21)
    result = build(net, {"x": items(1, 3, 4, 4)})
    assert [(row.node, row.on) for row in result.nodes] == [("first", "CPU"), ("second", "BPU")]
    assert reason in result.info["stays_float"]["first"]
    assert reason in result.info["kept_without_form"]["x"]
    assert "the file's grid has no form here and is left out" in caplog.text


def test_a_weight_with_a_zero_point_keeps_its_values_and_its_reader_float() -> None:
    net = two_convs(
        w0=np.arange(12, dtype=np.uint8).reshape(4, 3, 1, 1), ws=np.float32(0.01), wz=np.uint8(5)
    )
    next(n for n in net.graph.node if n.name == "dw").input.append("wz")
    result = build(net, {"x": items(1, 3, 4, 4)})
    assert "a weight with a zero point" in result.info["stays_float"]["first"]
    held = {t.name: numpy_helper.to_array(t) for t in result.calibrated.graph.initializer}
    expected = ((np.arange(12) - 5) * np.float32(0.01)).astype(np.float32)
    np.testing.assert_array_equal(held["w0d"].reshape(-1), expected)


def test_a_composed_operator_between_grids_of_the_file_stays_as_it_is() -> None:
    grid = {"s": np.float32(0.05), "t": np.float32(1 / 256), "z": np.int8(0), "u": np.int8(-128)}
    nodes = [
        make("QuantizeLinear", ["x", "s", "z"], ["xq"], name="q"),
        make("DequantizeLinear", ["xq", "s", "z"], ["xd"], name="d"),
        make("Softmax", ["xd"], ["p"], axis=1, name="softmax"),
        make("QuantizeLinear", ["p", "t", "u"], ["pq"], name="q1"),
        make("DequantizeLinear", ["pq", "t", "u"], ["pd"], name="d1"),
        make("Gemm", ["pd", "w"], ["y"], name="head"),
    ]
    net = model(nodes, {"x": [2, 8]}, {"y": [2, 3]}, {"w": weights(8, 3), **grid})
    result = build(net, {"x": items(2, 8)})
    assert [row.node_type for row in result.nodes] == ["Softmax", "Gemm"]
    assert "Softmax" in kinds(result.calibrated)


def test_grids_written_with_plain_operators_are_found() -> None:
    step = np.float32(1 / 4096)
    nodes = [
        make("Div", ["x", "s"], ["a"], name="div"),
        make("Add", ["a", "half"], ["b"], name="add"),
        make("Floor", ["b"], ["c"], name="floor"),
        make("Clip", ["c", "low", "high"], ["e"], name="clip"),
        make("Mul", ["e", "s"], ["f"], name="grid"),
        make("Conv", ["f", "w"], ["y"], name="conv"),
    ]
    codes = np.random.default_rng(0).integers(-127, 128, (3, 3, 1, 1))
    codes[:, 0] = 127
    scales = np.array([0.01, 0.02, 0.005], np.float32)
    constants = {
        "s": step,
        "half": np.float32(0.5),
        "low": np.float32(-32768),
        "high": np.float32(32767),
        "w": (codes * scales.reshape(3, 1, 1, 1)).astype(np.float32),
    }
    shape = [1, 3, 4, 4]
    data = {"x": items(1, 3, 4, 4)}
    result = build(model(nodes, {"x": shape}, {"y": shape}, constants), data)
    held = {
        node.input[0]: hz_calibration.calibration_of(node)
        for node in result.calibrated.graph.node
        if node.op_type == "HzCalibration"
    }
    assert (held["x"].bits, held["x"].scales.tolist()) == (16, [float(step)])
    # the scales of the weight are found again up to the rounding of a product and a quotient
    np.testing.assert_allclose(held["w"].scales, scales, rtol=3e-7)
    (x,) = data["x"][:1]
    taken = np.floor(x / step + np.float32(0.5)).astype(np.int64)
    exact = np.einsum("oc,chw->ohw", codes.reshape(3, 3), taken[0])
    real = exact * (np.float64(step) * scales.reshape(3, 1, 1))
    # int16 input and int8 weight: the sum is exact, its scale is float32
    np.testing.assert_allclose(result.quantized[0].feed({"x": x})["y"][0], real, rtol=1e-6)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ({"first": {"qtype": "int16"}}, "first: input0 is to be int16, but the file has it on"),
        ({"second": {"input0": "int16"}}, "second: input0 is to be int16, but the file has it"),
        ({"d1": {"qtype": "int16"}}, "d1: it is the calibration of 'c0' in the file"),
        ({"first": {"threshold": 1.0}}, "what the node reads lies on a grid of the file"),
    ],
)
def test_grids_of_the_file_are_not_configured(nodes: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        build(two_convs(), {"x": items(1, 3, 4, 4)}, {"node_config": nodes})


def test_a_dtype_for_all_leaves_grids_of_the_file() -> None:
    wide = {"model_config": {"all_node_type": "int16"}}
    result = build(two_convs(), {"x": items(1, 3, 4, 4)}, wide, "nash-m")
    assert result.info["int16"] == ["r"]
    nothing = {"model_config": {"all_node_type": "float32"}}
    result = build(two_convs(), {"x": items(1, 3, 4, 4)}, nothing)
    assert set(result.info["stays_float"]) == {"first", "second", "act", "third"}


def test_a_stored_weight_may_be_read_as_it_is_and_turned() -> None:
    grid = {"s": np.float32(0.05), "z": np.int8(0), "ws": np.float32(0.01)}
    nodes = [
        make("QuantizeLinear", ["x", "s", "z"], ["xq"], name="q"),
        make("DequantizeLinear", ["xq", "s", "z"], ["xd"], name="d"),
        make("DequantizeLinear", ["w", "ws"], ["wd"], name="dw"),
        make("Transpose", ["wd"], ["wt"], name="turn"),
        make("MatMul", ["xd", "wd"], ["y"], name="one"),
        make("MatMul", ["xd", "wt"], ["y2"], name="other"),
    ]
    codes = np.random.default_rng(0).integers(-128, 128, (4, 4)).astype(np.int8)
    ends = {"y": [2, 4], "y2": [2, 4]}
    net = model(nodes, {"x": [2, 4]}, ends, {"w": codes, **grid})
    data = {"x": items(2, 4)}
    result = build(net, data)
    same_integers(net, result, data)
    assert "HzCalibration" not in kinds(result.calibrated)
    assert {row.on for row in result.nodes if row.node_type == "MatMul"} == {"BPU"}


def test_a_new_calibration_node_gets_a_name_of_its_own() -> None:
    whole = build(classifier(), {"x": items(1, 3, 8, 8)}).calibrated
    make_free = next(n for n in whole.graph.node if n.name == "twin")
    held = next(n for n in whole.graph.node if n.output[0] == make_free.input[1])
    copy = onnx.NodeProto()
    copy.CopyFrom(make_free)
    copy.name, copy.output[0], copy.input[1] = "again", "extra", held.input[0]
    whole.graph.node.append(copy)
    whole.graph.output.append(helper.make_tensor_value_info("extra", 1, [1, 4, 4, 4]))
    result = build(whole, {"x": items(1, 3, 8, 8)})
    names = [node.name for node in result.calibrated.graph.node]
    assert len(set(names)) == len(names)
    assert sum(name.startswith("w1_HzCalibration") for name in names) == 2
    assert result.info["kept"] != []

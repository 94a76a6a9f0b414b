"""Files that load_calibrated takes as they come, and the one error that others get."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from qtune.errors import ArgumentError, OnnxImportError
from qtune.hbir.onnx_import import import_onnx
from qtune.onnx_debug.load import load_calibrated
from tests.hbir.onnx_import.calibrated_files import calibrated, on_grid
from tests.hbir.onnx_import.quantized_files import samples

from . import nets
from .test_load_pairs import run

make = helper.make_node
READERS = [load_calibrated, import_onnx]
SHAPE = (2, 2)


def relu(opset: int = 21) -> onnx.ModelProto:
    model = calibrated([on_grid("x", 0.1), make("Relu", ["x_q"], ["y"], name="act")], SHAPE, {})
    model.opset_import[0].version = opset
    return model


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 17, 21, 22, 25])
def test_any_opset_is_brought_to_ours_with_its_names(opset: int) -> None:
    source = relu(opset)
    before = source.SerializeToString()
    model = load_calibrated(source)
    assert [node.name for node in model.nodes] == ["act"]
    assert list(model.calibrations) == ["x_HzCalibration"]
    assert {item.domain: item.version for item in model.proto.opset_import}[""] == 21
    x = samples(SHAPE, 1)
    (got,) = run(model.proto, {"x": x})
    codes = np.floor(x / np.float32(0.1) + np.float32(0.5))
    np.testing.assert_array_equal(got, np.maximum(codes * np.float32(0.1), 0))
    assert source.SerializeToString() == before


@pytest.mark.parametrize("domain", ["", "horizon", "qtune"])
def test_calibration_nodes_of_any_domain_are_taken(domain: str) -> None:
    model = nets.residual()
    for node in model.graph.node:
        if node.op_type == "HzCalibration":
            node.domain = domain
    del model.functions[:]
    x = {"x": nets.data(1)[0]}
    expected = run(nets.residual(), x)[0]
    np.testing.assert_array_equal(run(load_calibrated(model).proto, x)[0], expected)


def test_thresholds_alone_are_divided_by_a_power_of_two() -> None:
    model = nets.residual()
    for node in model.graph.node:
        kept = [onnx.AttributeProto.FromString(a.SerializeToString()) for a in node.attribute]
        del node.attribute[:]
        node.attribute.extend(a for a in kept if a.name != "scales")
    found = load_calibrated(model).calibrations["x_HzCalibration"]
    assert (found.scales, found.threshold) == (np.float32(3 / 128), 3.0)


def test_a_weight_of_a_constant_node_and_of_two_users() -> None:
    weight = numpy_helper.from_array(samples((2, 2), 3), "value")
    nodes = [
        make("Constant", [], ["w"], value=weight),
        on_grid("x", 0.1),
        on_grid("w", 0.02),
        make("MatMul", ["x_q", "w_q"], ["a"], name="first"),
        make("MatMul", ["a", "w_q"], ["y"], name="second"),
    ]
    model = load_calibrated(calibrated(nodes, SHAPE, {}))
    item = model.calibrations["w_HzCalibration"]
    assert (item.kind, item.users) == ("weight", ("first", "second"))
    assert [node.name for node in model.nodes] == ["first", "second"]


def test_external_data_and_a_free_batch(tmp_path: Path) -> None:
    model = nets.residual()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    path = tmp_path / "net.onnx"
    onnx.save(model, path, save_as_external_data=True, location="net.data", size_threshold=0)
    loaded = load_calibrated(path)
    assert loaded.path == str(path)
    assert loaded.inputs[0].shape == (None, 3, 8, 8)
    x = {"x": nets.data(1)[0]}
    np.testing.assert_array_equal(run(loaded.proto, x)[0], run(nets.residual(), x)[0])


@pytest.mark.parametrize("left", [None, b"12"], ids=["missing", "too short"])
@pytest.mark.parametrize("read", READERS)
def test_external_data_that_is_not_there_is_an_error_naming_the_file(
    read: Callable[..., Any], left: bytes | None, tmp_path: Path
) -> None:
    path, data = tmp_path / "net.onnx", tmp_path / "net.data"
    onnx.save(
        nets.residual(), path, save_as_external_data=True, location=data.name, size_threshold=0
    )
    data.unlink()
    if left is not None:
        data.write_bytes(left)
    with pytest.raises(OnnxImportError, match=r"external data of .*net\.onnx can't be read: "):
        read(path)


@pytest.mark.parametrize("read", READERS)
def test_an_if_with_a_constant_condition_is_the_branch_it_takes(read: Callable[..., Any]) -> None:
    """The condition is computed from the shape of the input, as exporters write it."""
    nodes = [
        make("Shape", ["x"], ["sizes"]),
        make("Gather", ["sizes", "first"], ["size"]),
        make("Equal", ["size", "two"], ["is_two"]),
    ]
    numbers = {"first": np.array(0), "two": np.array(2)}
    result = read(_choice(nodes, "is_two", numbers))
    x = samples(SHAPE, 1)
    grid = np.floor(x / np.float32(0.1) + np.float32(0.5)) * np.float32(0.1)
    got = (
        run(result.proto, {"x": x})[0] if read is load_calibrated else result[0].feed({"x": x})["y"]
    )
    np.testing.assert_array_equal(got, np.maximum(grid, 0))


@pytest.mark.parametrize("read", READERS)
def test_an_if_that_data_decides_is_refused_by_name(read: Callable[..., Any]) -> None:
    nodes = [
        make("ReduceMax", ["x"], ["largest"], keepdims=0),
        make("Greater", ["largest", "zero"], ["is_positive"]),
    ]
    with pytest.raises(OnnxImportError, match="choice: If: its condition is computed"):
        read(_choice(nodes, "is_positive", {"zero": np.float32(0)}))


def _choice(nodes: list[onnx.NodeProto], condition: str, numbers: Any) -> onnx.ModelProto:
    result = helper.make_tensor_value_info("t", onnx.TensorProto.FLOAT, SHAPE)
    yes, no = (
        helper.make_graph([make(kind, ["x_q"], ["t"])], kind, [], [result])
        for kind in ("Relu", "Neg")
    )
    last = make("If", [condition], ["y"], name="choice", then_branch=yes, else_branch=no)
    return calibrated([*nodes, on_grid("x", 0.1), last], SHAPE, numbers)


@pytest.mark.parametrize("read", READERS)
def test_what_is_no_model_gets_one_error(read: Callable[..., Any], tmp_path: Path) -> None:
    content = nets.residual().SerializeToString()
    files = {"text": b"not a model", "empty": b"", "half": content[:1000], "cut": content[:-3]}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(OnnxImportError, match=f"{name} is no ONNX file"):
            read(tmp_path / name)
    with pytest.raises(OnnxImportError, match="missing can't be read: No such file"):
        read(tmp_path / "missing")
    with pytest.raises(OnnxImportError, match="can't be read: Is a directory"):
        read(tmp_path)
    with pytest.raises(ArgumentError, match="got int"):
        read(5)


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("opset", [6, 99])
def test_an_opset_out_of_range_is_stated(read: Callable[..., Any], opset: int) -> None:
    with pytest.raises(OnnxImportError, match=f"is of opset {opset}; taken are opsets 7 to"):
        read(relu(opset))


@pytest.mark.parametrize("read", READERS)
def test_thresholds_that_make_no_sense_are_named_all_at_once(read: Callable[..., Any]) -> None:
    model = nets.residual()
    wrong = {"r_HzCalibration": 0.0, "w1_HzCalibration": float("nan")}
    for node in model.graph.node:
        for attribute in node.attribute:
            if node.name in wrong and attribute.name == "thresholds":
                attribute.floats[-1] = wrong[node.name]
    with pytest.raises(OnnxImportError) as raised:
        read(model)
    assert "r_HzCalibration: its threshold is 0;" in str(raised.value)
    assert "w1_HzCalibration: its threshold of channel 3 is nan;" in str(raised.value)


def test_operators_without_a_form_are_listed_all_at_once() -> None:
    nodes = [
        on_grid("x", 0.1),
        make("Det", ["x_q"], ["d"], name="determinant"),
        make("Strange", ["x_q"], ["e"], name="foreign", domain="elsewhere"),
        make("Relu", ["e"], ["f"], name="behind"),
        make("NonZero", ["x_q"], ["g"], name="places"),
        make("Add", ["x_q", "d"], ["y"], name="sum"),
    ]
    model = calibrated(nodes, SHAPE, {})
    with pytest.raises(OnnxImportError) as raised:
        import_onnx(model)
    lines = str(raised.value).splitlines()
    assert lines[:3] == [
        "3 node(s) can't be imported:",
        "  - determinant: Det has no form here",
        "  - foreign: elsewhere::Strange has no form here",
    ]
    assert lines[3].startswith("  - places: NonZero has no form here: data decide")
    assert len(lines) == 4


def test_a_float_model_is_no_calibrated_one() -> None:
    with pytest.raises(OnnxImportError, match="no calibration node .*build_model"):
        load_calibrated(calibrated([make("Relu", ["x"], ["y"])], SHAPE, {}))


@pytest.mark.parametrize("left_out", ["shape", "type"])
def test_outputs_that_state_nothing_get_what_inference_tells(left_out: str) -> None:
    proto = nets.residual()
    output = proto.graph.output[0]
    if left_out == "shape":
        output.type.tensor_type.ClearField("shape")
    else:
        output.ClearField("type")
    before = proto.SerializeToString()
    (port,) = load_calibrated(proto).outputs
    assert (port.name, port.shape, port.dtype) == ("y", (1, 5), np.float32)
    assert proto.SerializeToString() == before

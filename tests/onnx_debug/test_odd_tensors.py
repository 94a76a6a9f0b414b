"""The debugger on tensors without values, with infinite ones, and of a single number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qtune.errors import ArgumentError
from qtune.hbir import hz_calibration
from qtune.hbir.hz_calibration import Calibration
from qtune.onnx_debug import (
    get_channelwise_data_distribution,
    get_sensitivity_of_nodes,
    plot_acc_error,
    plot_distribution,
    runall,
    sensitivity_analysis,
    tensor_analysis,
)

METRICS = ["cosine-similarity", "mse", "mre", "sqnr", "chebyshev"]


def calibrated(tensor: str) -> onnx.NodeProto:
    held = Calibration(np.array([4 / 127.5], np.float32), np.array([4], np.float32), 8)
    return hz_calibration.make_node(f"{tensor}_HzCalibration", tensor, f"{tensor}_q", held)


def model(
    nodes: Sequence[onnx.NodeProto], shape: Sequence[int], outputs: dict[str, Any], **constants: Any
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "odd",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in outputs.items()],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    hz_calibration.declare(made)
    return made


def empty() -> onnx.ModelProto:
    """A slice without elements, calibrated, beside an output with some."""
    nodes = [
        calibrated("x"),
        helper.make_node("Slice", ["x_q", "zero", "zero", "one"], ["z"], name="Slice"),
        calibrated("z"),
        helper.make_node("Relu", ["z_q"], ["none"], name="Relu"),
        helper.make_node("Sigmoid", ["x_q"], ["y"], name="Sigmoid"),
    ]
    ends = {"zero": np.array([0]), "one": np.array([1])}
    return model(nodes, [1, 4], {"none": [1, 0], "y": [1, 4]}, **ends)


def infinite() -> onnx.ModelProto:
    """``1 / x``, which is infinite where an item is 0."""
    nodes = [
        calibrated("x"),
        helper.make_node("Reciprocal", ["x_q"], ["r"], name="Reciprocal"),
        calibrated("r"),
        helper.make_node("Relu", ["r_q"], ["y"], name="Relu"),
    ]
    return model(nodes, [1, 4], {"y": [1, 4]})


def text(*numbers: str) -> onnx.ModelProto:
    """A number beside its text; ``numbers``: outputs that are no text."""
    nodes = [
        calibrated("x"),
        helper.make_node("Relu", ["x_q"], ["y"], name="Relu"),
        helper.make_node("Cast", ["y"], ["s"], name="Cast", to=TensorProto.STRING),
    ]
    made = model(nodes, [1, 4], {name: [1, 4] for name in numbers})
    made.graph.output.append(helper.make_tensor_value_info("s", TensorProto.STRING, [1, 4]))
    return made


def scalar() -> onnx.ModelProto:
    nodes = [calibrated("x"), helper.make_node("Relu", ["x_q"], ["y"], name="Relu")]
    return model(nodes, [], {"y": []})


ROWS = [
    pytest.param(empty(), [np.array([[1, -2, 0.5, 3]], np.float32)], id="empty"),
    pytest.param(infinite(), [np.array([[1, 0, -0.3, 3]], np.float32)], id="infinite"),
    pytest.param(scalar(), [np.array(1.3, np.float32), np.array(-1, np.float32)], id="scalar"),
]


@pytest.mark.parametrize(("proto", "data"), ROWS)
@pytest.mark.usefixtures("empty_pictures")
def test_every_function_takes_them(proto: onnx.ModelProto, data: list[Any], tmp_path: Path) -> None:
    nodes = [node.name for node in proto.graph.node]
    grids = [name for name in nodes if name.endswith("_HzCalibration")]
    get_sensitivity_of_nodes(proto, METRICS, data)
    for metric in METRICS:
        plot_acc_error(data, proto, quantize_node="activation", metric=metric, save_dir=tmp_path)
        sensitivity_analysis(proto, data, metric, sensitive_nodes=grids, save_dir=tmp_path)
    plot_distribution(proto, data, nodes, tmp_path)
    get_channelwise_data_distribution(proto, data, grids, save_dir=tmp_path)
    found = tensor_analysis(proto, data, nodes, tmp_path)
    assert [row.node for row in found.tensors] == nodes
    assert runall(proto, data, tmp_path / "all").files


@pytest.mark.usefixtures("empty_pictures")
def test_text_is_left_out_and_can_not_be_looked_at(tmp_path: Path) -> None:
    data = ROWS[0].values[1]
    assert list(get_sensitivity_of_nodes(text("y"), "mse", data)) == ["Relu"]
    assert plot_acc_error(data, text("y"), quantize_node="Relu", save_dir=tmp_path).nodes == (
        "Relu",
    )
    with pytest.raises(ArgumentError, match="Cast: s holds object, no numbers"):
        plot_distribution(text("y"), data, "Cast", tmp_path)
    with pytest.raises(ArgumentError, match="outputs of the model hold no numbers to compare"):
        get_sensitivity_of_nodes(text(), "mse", data)
    assert get_sensitivity_of_nodes(text(), "mse", data, output_node="Relu")


@pytest.mark.usefixtures("empty_pictures")
def test_a_tensor_without_values_has_a_row_of_nothing(tmp_path: Path) -> None:
    found = tensor_analysis(empty(), ROWS[0].values[1], "z_HzCalibration", tmp_path)
    (row,) = found.tensors
    assert (row.values, row.not_finite, row.mse, row.clipped) == (0, 0, 0.0, 0.0)
    assert math.isnan(row.p50)
    assert not found.channels


def test_the_error_of_an_infinite_value_is_counted_as_lost(
    tmp_path: Path, figures: list[Any]
) -> None:
    plot_distribution(infinite(), ROWS[1].values[1], "Reciprocal", tmp_path)
    labels = [[t.get_text() for t in axes.get_legend().get_texts()] for axes in figures[0].axes]
    assert [text[-1] for text in labels] == ["NaN or infinite: 1"] * 3


@pytest.mark.usefixtures("empty_pictures")
def test_the_sqnr_of_an_item_without_an_error_hides_no_other(tmp_path: Path) -> None:
    data = ROWS[2].values[1]  # of the second item the output is 0, exactly
    found = get_sensitivity_of_nodes(scalar(), "sqnr", data, data_num=None)
    alone = get_sensitivity_of_nodes(scalar(), "sqnr", data[:1])
    assert found == alone
    assert math.isfinite(found["Relu"]["sqnr"])


def test_a_sequence_of_tensors_is_told_by_its_name() -> None:
    nodes = [
        calibrated("x"),
        helper.make_node("SequenceConstruct", ["x_q", "x_q"], ["pair"], name="pack"),
        helper.make_node("SequenceAt", ["pair", "zero"], ["y"], name="pick"),
    ]
    proto = model(nodes, [1, 4], {"y": [1, 4]}, zero=np.array(0))
    data = [np.ones((1, 4), np.float32)]
    with pytest.raises(NotImplementedError, match="'pair' is a list of tensors .*output_nodes"):
        get_sensitivity_of_nodes(proto, calibrated_data=data)

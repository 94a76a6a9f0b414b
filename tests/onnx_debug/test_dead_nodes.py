"""Nodes whose results nobody reads, as quantizers leave them in a file: they disturb nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from qtune.hbir import hz_calibration
from qtune.hbir.hz_calibration import Calibration
from qtune.onnx_debug import get_sensitivity_of_nodes, plot_acc_error

pytest.importorskip("onnxruntime")


def grid(tensor: str) -> onnx.NodeProto:
    held = Calibration(np.full(1, 0.05, np.float32), np.full(1, 6.4, np.float32))
    return hz_calibration.make_node(f"{tensor}_HzCalibration", tensor, f"{tensor}_q", held)


def with_dead_nodes() -> onnx.ModelProto:
    """The last reads a calibrated tensor that the one before made, so it is a piece of its own."""
    nodes = [
        grid("x"),
        helper.make_node("Sigmoid", ["x_q"], ["s"], name="sigmoid"),
        grid("s"),
        helper.make_node("Neg", ["s_q"], ["y"], name="neg"),
        helper.make_node("Tanh", ["s_q"], ["t"], name="dead"),
        grid("t"),
        helper.make_node("Exp", ["t_q"], ["e"], name="dead_too"),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    hz_calibration.declare(model)
    return model


DATA = [np.linspace(-3, 3, 8, dtype=np.float32).reshape(1, 8) * scale for scale in (1, 2)]


def test_they_are_perfect_and_change_nothing() -> None:
    found = get_sensitivity_of_nodes(with_dead_nodes(), "mse", DATA, data_num=None)
    assert set(found) == {"sigmoid", "neg", "dead", "dead_too"}
    assert found["dead_too"] == {"mse": 0.0}
    assert found["sigmoid"]["mse"] > 0
    # at an ordinary node the calibration nodes before it are switched: s_q is read by neg, too
    assert found["dead"] == found["neg"]


def test_their_own_error_is_shown_like_any_other(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = plot_acc_error(DATA, with_dead_nodes(), "t_HzCalibration", save_dir=tmp_path)
    (curve,) = found.curves.values()
    errors = dict(zip(found.nodes, curve, strict=True))
    assert errors.pop("dead_too") < 1
    assert errors == {"sigmoid": 1.0, "dead": 1.0, "neg": 1.0}

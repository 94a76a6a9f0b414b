"""``sensitivity_analysis``: the series against sessions built by hand."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from qtune.errors import ArgumentError
from qtune.onnx_debug import load_calibrated, sensitivity_analysis
from qtune.onnx_debug.freed import widened

from . import brute, nets, nets_branches, nets_qdq

TOLERANCE = 1e-8  # of a cosine near 1; float32 sums in another order


def cosine(on: Collection[str], proto: onnx.ModelProto | None = None) -> float:
    model, feed = proto or nets.residual(), {"x": nets.data(1)[0]}
    plain = brute.values(nets.residual(), (), feed, ["y"])["y"]
    return brute.cosine(plain, brute.values(model, on, feed, ["y"])["y"])


@pytest.mark.usefixtures("empty_pictures")
def test_the_three_series(tmp_path: Path) -> None:
    model = load_calibrated(nets.residual())
    got = sensitivity_analysis(nets.residual(), nets.data(1), pick_threshold=1.0, save_dir=tmp_path)
    alone = {name: cosine(model.node(name).calibrations) for name in model.names("node")}
    assert got.nodes == tuple(sorted(alone, key=lambda name: alone[name]))
    (series,) = got.series
    assert got.baseline == 1.0
    assert series.only_current[0] == 1.0
    assert series.only_current[1:] == pytest.approx([alone[n] for n in got.nodes], abs=TOLERANCE)
    freed: set[str] = set()
    expected = [cosine(model.calibrations)]
    for name in got.nodes:
        freed.update(model.node(name).calibrations)
        expected.append(cosine(model.calibrations.keys() - freed))
    assert series.freed == pytest.approx(expected, abs=TOLERANCE)
    assert series.freed[-1] == pytest.approx(1.0, abs=1e-12)  # everything is given back


@pytest.mark.usefixtures("empty_pictures")
def test_int16_widens_the_activations_and_keeps_the_weights(tmp_path: Path) -> None:
    got = sensitivity_analysis(
        nets.residual(),
        nets.data(1),
        sensitive_nodes=["Conv_2"],
        qtype="int16",
        save_dir=tmp_path,
    )
    wide = nets.residual()
    for node in wide.graph.node:
        if node.name == "r_HzCalibration":
            del node.attribute[:]
            scale = float(np.float32(4.0) / np.float32(32767.5))
            given = {"axis": -1, "bits": 16, "scales": [scale], "thresholds": [4.0]}
            node.attribute.extend(helper.make_attribute(k, v) for k, v in given.items())
    everything = load_calibrated(wide).calibrations
    expected = [cosine(everything), cosine(everything, wide)]
    assert got.series[0].freed == pytest.approx(expected, abs=TOLERANCE)
    assert abs(expected[0] - expected[1]) > 1e-6


def test_a_pair_with_a_zero_point_keeps_its_range_in_16_bits() -> None:
    proto = nets_qdq.as_pairs(nets.residual())
    for tensor in proto.graph.initializer:
        if tensor.name == "r_z":
            tensor.CopyFrom(numpy_helper.from_array(np.uint8(0), "r_z"))
    item = load_calibrated(proto).calibrations["r_HzCalibration"]
    wide = widened(item)
    assert item.thresholds == item.scales * np.float32(255)
    # two roundings of float32
    assert wide.scales[0] * np.float32(32767.5) == pytest.approx(item.thresholds[0], rel=1e-6)
    assert wide.bits == 16


@pytest.mark.parametrize(
    ("metric", "threshold", "picked"),
    [
        ("mse", 0.05, ["Add_3", "Conv_2"]),
        ("sqnr", 36.0, ["Add_3", "Conv_2"]),
        ("cosine-similarity", 0.99979, ["Conv_2", "Add_3"]),
        ("chebyshev", 100.0, []),
    ],
)
@pytest.mark.usefixtures("empty_pictures")
def test_the_threshold_follows_the_direction_of_the_metric(
    tmp_path: Path, metric: str, threshold: float, picked: list[str], caplog: Any
) -> None:
    with caplog.at_level(logging.WARNING):
        got = sensitivity_analysis(
            nets.residual(),
            nets.data(3),
            metric,
            threshold,
            data_num=None,
            sensitive_nodes=[],
            save_dir=tmp_path,
        )
    assert list(got.nodes) == picked
    assert ("nothing to give back" in caplog.text) == (not picked)
    assert got.baseline == {"sqnr": math.inf, "cosine-similarity": 1.0}.get(metric, 0.0)


@pytest.mark.usefixtures("empty_pictures")
def test_given_nodes_keep_their_order(tmp_path: Path) -> None:
    nodes = ["Gemm_5", "x_HzCalibration"]
    got = sensitivity_analysis(
        nets.residual(), nets.data(1), sensitive_nodes=nodes, save_dir=tmp_path
    )
    assert list(got.nodes) == nodes
    assert got.series[0].only_current[2] == pytest.approx(
        cosine(["x_HzCalibration"]), abs=TOLERANCE
    )


@pytest.mark.usefixtures("empty_pictures")
def test_each_output_gets_a_figure_of_its_own(tmp_path: Path) -> None:
    feeds, proto = nets_branches.feeds(1), nets_branches.branches()
    got = sensitivity_analysis(
        proto,
        feeds,
        "mse",
        sensitive_nodes=["Conv_a", "Sigmoid_z"],
        output_separated=True,
        save_dir=tmp_path,
    )
    assert [series.output for series in got.series] == ["y_q", "k", "z"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"sensitivity_analysis_{name}.png" for name in ("k", "y_q", "z")
    ]
    by_output = {series.output: series for series in got.series}
    assert by_output["z"].only_current[:2] == (0.0, 0.0)  # Conv_a does not feed it
    plain = brute.values(proto, (), feeds[0], ["z"])["z"]
    on = load_calibrated(proto).node("Sigmoid_z").calibrations
    other = brute.values(proto, on, feeds[0], ["z"])["z"]
    assert by_output["z"].only_current[2] == pytest.approx(brute.mse(plain, other), rel=1e-3)


def test_the_figure_has_the_series(tmp_path: Path, figures: list[Any]) -> None:
    got = sensitivity_analysis(
        nets.residual(), nets.data(1), sensitive_nodes=["Conv_2"], save_dir=tmp_path
    )
    assert got.series[0].file == tmp_path / "sensitivity_analysis.png"
    (figure,) = figures
    drawn = [tuple(line.get_ydata()) for line in figure.axes[0].get_lines()]
    assert got.series[0].only_current in drawn
    assert got.series[0].freed in drawn
    ticks = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert ticks == ["none", "Conv_2"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"qtype": "int8"}, "qtype: expected float32 or int16; got 'int8'"),
        ({"metric": "psnr"}, "metric: expected one of"),
        ({"data_num": 0}, "data_num must be 1 to 1"),
        ({"sensitive_nodes": ["Relu_1"]}, "sensitive_nodes: nothing can be switched at Relu_1"),
        ({"pick_threshold": "a"}, "pick_threshold: expected a number but got 'a'"),
        ({"pick_threshold": math.nan}, "pick_threshold: expected a number but got nan"),
        (
            {"qtype": "int16", "sensitive_nodes": "w1_HzCalibration"},
            "sensitive_nodes: w1_HzCalibration has no activation to give 16 bits",
        ),
    ],
)
def test_wrong_arguments_get_one_clear_error(
    tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        sensitivity_analysis(nets.residual(), nets.data(1), save_dir=tmp_path, **arguments)
    assert not list(tmp_path.iterdir())

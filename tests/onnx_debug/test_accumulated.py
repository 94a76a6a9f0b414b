"""``plot_acc_error``: the numbers against sessions built by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qtune.errors import ArgumentError
from qtune.onnx_debug import accumulated, load_calibrated, plot_acc_error
from qtune.onnx_debug.metrics import DEFAULT, METRICS

from . import brute, nets

NODES = ("Conv_0", "Relu_1", "Conv_2", "Add_3", "Flatten_4", "Gemm_5")
TENSORS = ("v", "r", "c", "s", "f", "y")
RTOL = 1e-4  # the error of a cosine of 1e-4 from float32 sums in another order


def expected(on: Sequence[str], data: Sequence[Any]) -> list[float]:
    """``1 - cosine`` of each node."""
    rows = []
    for x in data:
        plain = brute.values(nets.residual(), (), {"x": x}, TENSORS)
        other = brute.values(nets.residual(), on, {"x": x}, TENSORS)
        rows.append([1 - brute.cosine(plain[name], other[name]) for name in TENSORS])
    return list(np.mean(rows, axis=0))


def on_of(*names: str) -> list[str]:
    model = load_calibrated(nets.residual())
    return [key for name in names for key in model.node(name).calibrations]


def but(*names: str) -> list[str]:
    return [
        key for key in load_calibrated(nets.residual()).calibrations if key not in on_of(*names)
    ]


def kind(name: str) -> list[str]:
    return list(load_calibrated(nets.residual()).names(name))


@pytest.mark.parametrize(
    ("arguments", "curves"),
    [
        (
            {"quantize_node": ["Conv_2", "Gemm_5"]},
            {"Conv_2": on_of("Conv_2"), "Gemm_5": on_of("Gemm_5")},
        ),
        ({"quantize_node": "Conv_0"}, {"Conv_0": on_of("Conv_0")}),
        (
            {"quantize_node": [["Conv_2"], ["Conv_2", "Conv_0"]]},
            {
                "partial_qmodel_0": on_of("Conv_2"),
                "partial_qmodel_1": on_of("Conv_2", "Conv_0"),
            },
        ),
        (
            {"quantize_node": ["weight", "activation"]},
            {"weight": kind("weight"), "activation": kind("activation")},
        ),
        ({"quantize_node": [["weight", "x_HzCalibration"]]}, {"partial_qmodel_0": None}),
        ({"non_quantize_node": ["Conv_2"]}, {"Conv_2": but("Conv_2")}),
        (
            {"non_quantize_node": [["Conv_2"], ["Gemm_5", "Conv_2"]]},
            {"partial_qmodel_0": but("Conv_2"), "partial_qmodel_1": but("Gemm_5", "Conv_2")},
        ),
    ],
)
@pytest.mark.usefixtures("empty_pictures")
def test_curves_against_sessions_of_their_own(
    tmp_path: Path, arguments: dict[str, Any], curves: dict[str, Any]
) -> None:
    data = nets.data(2)
    got = plot_acc_error(data, nets.residual(), save_dir=tmp_path, **arguments)
    assert got.nodes == NODES
    assert list(got.curves) == list(curves)
    for label, on in curves.items():
        values = [1 - value for value in got.curves[label]]
        wanted = expected(on or [*kind("weight"), "x_HzCalibration"], data)
        assert values == pytest.approx(wanted, rel=RTOL, abs=1e-10)


def test_average_mode_is_the_running_mean(tmp_path: Path) -> None:
    # the document shows three digits; sums in another order
    assert accumulated._running_mean([1.0, 0.9, 0.9, 0.8], METRICS[DEFAULT]) == pytest.approx(
        (1.0, 0.95, 0.9333333333333, 0.9)
    )
    inf = math.inf  # no error yet
    assert accumulated._running_mean([inf, 40.0, 30.0], METRICS["sqnr"]) == (inf, 40.0, 35.0)
    plain, mean = (
        plot_acc_error(
            nets.data(1),
            nets.residual(),
            quantize_node="Conv_0",
            metric="mse",
            average_mode=mode,
            save_dir=tmp_path,
        ).curves["Conv_0"]
        for mode in (False, True)
    )
    # float64, a few roundings of sums
    assert mean == pytest.approx([np.mean(plain[: n + 1]) for n in range(len(plain))])


def test_what_stands_before_the_quantized_node_is_exactly_perfect(tmp_path: Path) -> None:
    got = plot_acc_error(nets.data(1), nets.residual(), quantize_node="Conv_2", save_dir=tmp_path)
    assert got.curves["Conv_2"][:2] == (1.0, 1.0)
    assert max(got.curves["Conv_2"][2:]) < 1.0


def test_the_picture_has_the_curves(tmp_path: Path, saved_figures: list[Any]) -> None:
    got = plot_acc_error(
        nets.data(1), nets.residual(), quantize_node=["weight", "Conv_0"], save_dir=tmp_path
    )
    assert got.file == tmp_path / "accumulated_error.png"
    assert [path.name for path in tmp_path.iterdir()] == [got.file.name]
    (figure,) = saved_figures
    drawn = [tuple(line.get_ydata()) for line in figure.axes[0].get_lines()]
    assert drawn == list(got.curves.values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "one of quantize_node and non_quantize_node; neither was given"),
        ({"quantize_node": "Conv_0", "non_quantize_node": "Conv_2"}, "both were given"),
        ({"non_quantize_node": ["weight"]}, "weight and activation can only be given as quantize"),
        ({"non_quantize_node": "activation"}, "can only be given as quantize_node"),
        ({"quantize_node": ["Conv_0", ["Conv_2"]]}, "names and lists are mixed"),
        ({"quantize_node": []}, "expected a name, a list of names"),
        ({"quantize_node": [[]]}, "the list is empty"),
        ({"quantize_node": 3}, "expected a name, a list of names"),
        ({"quantize_node": [["Conv_0", 3]]}, "quantize_node: expected the name of a node"),
        ({"quantize_node": "Conv_1"}, "no ordinary node or calibration node 'Conv_1'"),
        ({"quantize_node": "Flatten_4"}, "nothing can be switched at Flatten_4"),
        ({"quantize_node": "c"}, "it is the name of a tensor, which Conv_2 makes"),
        ({"quantize_node": "Conv_0", "average_mode": "x"}, "average_mode: expected True or False"),
        ({"quantize_node": "Conv_0", "metric": "l2"}, "metric: expected one of .*; got 'l2'"),
    ],
)
def test_wrong_arguments_get_one_clear_error(
    tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        plot_acc_error(nets.data(1), nets.residual(), save_dir=tmp_path, **arguments)
    assert not list(tmp_path.iterdir())

"""plot_distribution: what is drawn for each kind of node, over all data, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qtune.errors import ArgumentError
from qtune.hbir.hz_calibration import apply, calibration_of
from qtune.onnx_debug.data import CalibrationDataSet
from qtune.onnx_debug.distribution import plot_distribution
from qtune.onnx_debug.load import load_calibrated
from qtune.onnx_debug.runner import Runner

from . import nets

KINDS = ["r_HzCalibration", "w1_HzCalibration", "Conv_2"]


def texts(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]


def all_values(tensor: str, *, calibrated: bool = False) -> nets.Array:
    """``tensor`` of all items by the float or the calibrated model."""
    model = load_calibrated(nets.residual())
    runner = Runner(model, CalibrationDataSet(nets.data(), model.inputs))
    on = model.calibrations if calibrated else ()
    return np.stack([runner.values(i, on, [tensor])[tensor] for i in range(3)])


def test_all_three_kinds_at_once_by_keyword(tmp_path: Path, saved_figures: list[Any]) -> None:
    paths = plot_distribution(
        save_dir=str(tmp_path),
        calibrated_data=nets.data(),
        nodes_list=KINDS,
        model_or_file=nets.residual(),
    )
    assert [path.name for path in paths] == [f"{name}_distribution.png" for name in KINDS]
    assert sorted(tmp_path.iterdir()) == sorted(paths)
    titles = [[axes.get_title() for axes in figure.axes] for figure in saved_figures]
    assert titles == [
        ["input of the calibration node"],
        ["original weight", "calibrated weight"],
        ["float output", "calibrated output", "error (calibrated - float)"],
    ]


def test_an_activation_is_that_of_the_float_model_on_all_items(
    tmp_path: Path, figures: list[Any]
) -> None:
    plot_distribution(nets.residual(), nets.data(), "r_HzCalibration", tmp_path)
    (axes,) = figures[0].axes
    values = all_values("r")
    assert axes.patches[0].get_data().values.sum() == values.size == 3 * 4 * 64
    assert texts(axes) == [f"absolute maximum {values.max():.6g}", "threshold 4"]


def test_a_weight_is_shown_before_and_after(tmp_path: Path, figures: list[Any]) -> None:
    plot_distribution(nets.residual(), nets.data(1), "w1_HzCalibration", tmp_path)
    original, calibrated = figures[0].axes
    weight = nets.weights()["w1"]
    node = next(n for n in nets.residual().graph.node if n.name == "w1_HzCalibration")
    after = apply(calibration_of(node), weight)
    threshold = f"threshold {np.abs(weight).max():.6g}"
    assert texts(original) == [f"absolute maximum {np.abs(weight).max():.6g}", threshold]
    assert texts(calibrated) == [f"absolute maximum {np.abs(after).max():.6g}", threshold]


def test_an_ordinary_node_has_both_outputs_and_their_error(
    tmp_path: Path, figures: list[Any]
) -> None:
    plot_distribution(nets.residual(), nets.data(), ["Conv_2", "Gemm_5"], tmp_path)
    plain, calibrated, error = (texts(axes) for axes in figures[0].axes)
    a, b = all_values("c"), all_values("c", calibrated=True)
    assert plain == [f"absolute maximum {np.abs(a).max():.6g}", "threshold 5"]
    assert calibrated == [f"absolute maximum {np.abs(b).max():.6g}", "threshold 5"]
    difference = np.abs(b.astype(np.float64) - a).max()
    assert error == [f"absolute maximum {difference:.6g}"]
    assert len(texts(figures[1].axes[0])) == 1  # nothing calibrates the model's output


def test_an_input_of_the_model_is_drawn_from_the_data(tmp_path: Path, figures: list[Any]) -> None:
    plot_distribution(nets.residual(), nets.data(), "x_HzCalibration", tmp_path)
    largest = max(float(np.abs(item).max()) for item in nets.data())
    assert texts(figures[0].axes[0])[0] == f"absolute maximum {largest:.6g}"


@pytest.mark.usefixtures("empty_pictures")
def test_names_of_paths_become_names_of_files(tmp_path: Path) -> None:
    model = nets.residual()
    for node, name in zip(model.graph.node, ["/m/x:0", "m_x_0"], strict=False):
        node.name = name
    paths = plot_distribution(model, nets.data(1), ["/m/x:0", "m_x_0"], tmp_path)
    names = [path.name for path in paths]
    assert names == ["m_x_0_distribution.png", "m_x_0_1_distribution.png"]


def test_a_node_that_does_not_exist_is_named_with_what_is_near(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"no ordinary node or .* 'Conv_3'; close .* Conv_2"):
        plot_distribution(nets.residual(), nets.data(), ["Conv_2", "Conv_3"], tmp_path)
    for wrong in ([], 3, [["Conv_2"]], None):
        with pytest.raises(ArgumentError, match="nodes_list"):
            plot_distribution(nets.residual(), nets.data(), wrong, tmp_path)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("empty_pictures")
def test_the_given_model_stays_as_it_was(tmp_path: Path) -> None:
    model = nets.residual()
    before = onnx.ModelProto()
    before.CopyFrom(model)
    plot_distribution(model, nets.data(), KINDS, tmp_path)
    assert model == before


def test_a_folder_that_can_not_be_one_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match="save_dir.*is a file"):
        plot_distribution(nets.residual(), nets.data(), KINDS, tmp_path / "file")

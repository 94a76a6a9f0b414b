"""get_channelwise_data_distribution: which values a box shows, and the rules of the axis."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qtune.errors import ArgumentError
from qtune.onnx_debug import channels_values
from qtune.onnx_debug.channels import get_channelwise_data_distribution
from qtune.onnx_debug.channels_values import ChannelValues

from . import nets
from .test_distribution import all_values


def medians(figure: Any) -> list[float]:
    return [segment[0, 1] for segment in figure.axes[0].collections[2].get_segments()]


def drawn(nodes: Any, folder: Path, **options: Any) -> list[Path]:
    return get_channelwise_data_distribution(
        save_dir=folder,
        model_or_file=nets.residual(),
        calibrated_data=nets.data(),
        nodes_list=nodes,
        **options,
    )


def test_an_activation_has_its_channels_at_axis_1(tmp_path: Path, figures: list[Any]) -> None:
    (path,) = drawn("r_HzCalibration", tmp_path)
    assert path == tmp_path / "r_HzCalibration_channelwise.png"
    values = all_values("r")[:, 0]  # items, channels, height, width
    assert medians(figures[0]) == [float(np.median(values[:, i])) for i in range(4)]


def test_a_weight_has_them_at_its_own_axis(tmp_path: Path, figures: list[Any]) -> None:
    drawn(["w1_HzCalibration", "w2_HzCalibration"], tmp_path)
    weight = nets.weights()["w1"].astype(np.float64)
    assert medians(figures[0]) == [float(np.median(row)) for row in weight]
    assert len(medians(figures[1])) == 5


@pytest.mark.parametrize(("axis", "channels"), [(0, 1), (2, 8), (-1, 8), (1, 4)])
def test_axis_chooses_the_channels(
    axis: int, channels: int, tmp_path: Path, figures: list[Any]
) -> None:
    drawn("r_HzCalibration", tmp_path, axis=axis)
    assert len(medians(figures[0])) == channels
    word = "channel" if channels == 1 else "channels"
    assert f" {channels} {word} along axis {axis % 4}" in figures[0].axes[0].get_title()


@pytest.mark.parametrize(
    ("nodes", "axis", "message"),
    [
        ("r_HzCalibration", 4, "axis: r_HzCalibration reads 'r' of 4 dimensions.*-4 to 3"),
        ("w2_HzCalibration", 2, "axis: w2_HzCalibration reads 'w2' of 2 dimensions.*-2 to 1"),
        ("r_HzCalibration", "1", "axis: expected a whole number or None, got a str"),
        ("r", None, "it is the name of a tensor, which r_HzCalibration reads"),
        ("r_HzCalibration", True, "axis: expected a whole number or None, got a bool"),
        ("Conv_2", None, "Conv_2 is an ordinary node, expected a calibration node"),
        ("s_HzCalibration", None, "no calibration node 's_HzCalibration'; close matches"),
    ],
)
def test_what_is_wrong_is_said(nodes: str, axis: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=message):
        drawn(nodes, tmp_path, axis=axis)
    assert not list(tmp_path.iterdir())


def test_extremes_mean_and_deviation_are_those_of_all_values() -> None:
    rng = np.random.default_rng(0)
    items = [rng.normal(3, 2, (3, 50)).astype(np.float32) for _ in range(4)]
    values = ChannelValues(3, 4)
    for item in items:
        values.add(item)
    whole = np.concatenate(items, axis=1).astype(np.float64)
    assert values.least.tolist() == whole.min(axis=1).tolist()
    assert values.most.tolist() == whole.max(axis=1).tolist()
    # sums in another order, in float64
    np.testing.assert_allclose(values.mean, whole.mean(axis=1), rtol=1e-13)
    np.testing.assert_allclose(values.deviation, whole.std(axis=1), rtol=1e-13)
    expected = np.quantile(whole, (0.25, 0.5), axis=1).T
    assert values.quantiles((0.25, 0.5)).tolist() == expected.tolist()


def test_more_values_than_are_kept_give_a_sample_with_the_true_extremes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channels_values, "MOST_KEPT_OF_CHANNEL", 2000)
    values = ChannelValues(1, 4)
    rows = np.arange(40_000, dtype=np.float32).reshape(4, 1, 10_000)
    for item in rows:
        values.add(item)
    assert sum(row.size for row in values) == 2000
    (box,) = values.boxes()
    # a share of 2000 of 40,000 values: the deviation of a quartile is 0.01 of the range; 5 of these
    assert abs(box.median - 20_000) < 2000
    assert abs(box.lower_quartile - 10_000) < 2000
    assert (values.least[0], values.most[0], box.mean) == (0.0, 39_999.0, 19_999.5)
    assert (box.low <= values.least[0] + 200, box.fliers) == (True, (0.0, 39_999.0))


def test_whiskers_end_within_one_and_a_half_boxes() -> None:
    values = ChannelValues(1, 1)
    values.add(np.array([[0.0, 1, 2, 3, 4, 5, 6, 7, 8, 20, -15]]))
    (box,) = values.boxes()
    assert (box.lower_quartile, box.median, box.upper_quartile) == (1.5, 4.0, 6.5)
    assert (box.low, box.high, box.fliers) == (0.0, 8.0, (-15.0, 20.0))


def test_values_that_are_not_finite_are_left_out() -> None:
    values = ChannelValues(2, 1)
    values.add(np.array([[np.nan, 1.0, 3.0], [np.inf, np.nan, -np.inf]]))
    full, empty = values.boxes()
    assert (full.mean, full.low, full.high) == (2.0, 1.0, 3.0)
    assert values.lost.tolist() == [1, 3]
    assert np.isnan(empty.median)


def test_a_channel_has_the_values_of_the_items_that_have_it() -> None:
    values = ChannelValues(1, 3)
    values.add(np.array([[1.0]]))
    values.add(np.array([[3.0, 4.0], [5.0, 7.0]]))
    values.add(np.array([[8.0]]))
    assert [row.tolist() for row in values] == [[1.0, 3.0, 4.0, 8.0], [5.0, 7.0]]
    assert values.mean.tolist() == [4.0, 6.0]
    assert (values.least.tolist(), values.most.tolist()) == ([1.0, 5.0], [8.0, 7.0])
    assert (values.count.tolist(), values.lost.tolist()) == ([4, 2], [0, 0])

"""Pictures: what stands where, nothing cut off, nothing of matplotlib's state changed."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_hex

from qtune.errors import ArgumentError
from qtune.onnx_debug import pictures_boxes, pictures_sheet
from qtune.onnx_debug.distribution_counts import Counts
from qtune.onnx_debug.pictures import draw_curves, draw_sensitivity
from qtune.onnx_debug.pictures_boxes import ROW, Box, draw_boxes
from qtune.onnx_debug.pictures_histograms import Panel, draw_histograms
from qtune.onnx_debug.pictures_ranges import Ranges, draw_ranges


def size_of(path: Path) -> tuple[int, int]:
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", head[16:24])
    return width, height


def texts(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]


def counted(*values: float) -> Counts:
    counts = Counts()
    counts.add(np.array(values))
    return counts


def test_curves_stand_at_their_values_over_the_names(
    tmp_path: Path, saved_figures: list[Any]
) -> None:
    curves = {"Conv_2": [1.0, 0.9, 0.8], "_$x$": [1.0, None, 0.7]}
    path = draw_curves(tmp_path / "new" / "c.png", ["a", "b", "$c$"], curves, "mse", "error")
    (axes,) = saved_figures[0].axes
    first, second = axes.get_lines()
    assert first.get_ydata().tolist() == [1.0, 0.9, 0.8]
    assert second.get_ydata()[[0, 2]].tolist() == [1.0, 0.7]
    assert math.isnan(second.get_ydata()[1])
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["a", "b", "$c$"]
    assert axes.get_xticks().tolist() == [0, 1, 2]
    assert texts(axes) == ["Conv_2", "_$x$"]
    assert (axes.get_ylabel(), axes.get_title()) == ("mse", "error")
    assert min(size_of(path)) > 400
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["c.png"]


def test_no_two_of_many_curves_look_alike(tmp_path: Path, figures: list[Any]) -> None:
    draw_curves(tmp_path / "c.png", ["a"], {str(i): [i] for i in range(28)}, "mse")
    looks = {(line.get_color(), line.get_linestyle()) for line in figures[0].axes[0].get_lines()}
    assert len(looks) == 28


def test_infinite_values_are_triangles_on_the_edge(tmp_path: Path, figures: list[Any]) -> None:
    draw_curves(tmp_path / "c.png", ["a", "b", "c"], {"x": [math.inf, 3.0, -math.inf]}, "sqnr")
    _, above, below = figures[0].axes[0].get_lines()
    assert (above.get_marker(), above.get_xdata()[0], above.get_ydata()[0]) == ("^", 0, 1.0)
    assert (below.get_marker(), below.get_xdata()[0], below.get_ydata()[0]) == ("v", 2, 0.0)


def test_nan_is_a_star_and_what_is_left_out_is_a_gap(tmp_path: Path, figures: list[Any]) -> None:
    draw_curves(tmp_path / "c.png", ["a", "b", "c"], {"x": [math.nan, None, 3.0]}, "mse")
    draw_sensitivity(tmp_path / "s.png", ["none", "a"], [1.0, math.nan], [0.5, None], "cosine")
    _, star = figures[0].axes[0].get_lines()
    assert (star.get_marker(), star.get_xdata().tolist(), star.get_ydata()[0]) == ("*", [0], 0.0)
    *_, green = figures[1].axes[0].get_lines()
    assert (green.get_marker(), green.get_xdata().tolist()) == ("*", [1])
    assert to_hex(green.get_color()) == pictures_sheet.GREEN.lower()


def test_a_curve_of_another_length_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="curve 'x': 1 values for 2 names"):
        draw_curves(tmp_path / "c.png", ["a", "b"], {"x": [1.0]}, "mse")
    assert not list(tmp_path.iterdir())


def test_text_is_whole_whatever_its_length(tmp_path: Path) -> None:
    short = draw_curves(tmp_path / "s.png", ["a"], {"x": [1.0]}, "mse")
    long = draw_curves(tmp_path / "l.png", ["n" * 55], {"x" * 55: [1.0]}, "mse")
    (width, height), (wide, high) = size_of(short), size_of(long)
    assert wide > width + 300  # 54 more letters of 8 points, about 7 pixels each
    assert high > height + 300


def test_the_names_of_many_nodes_have_room(tmp_path: Path, figures: list[Any]) -> None:
    names = [f"Conv_{i}" for i in range(150)]
    draw_curves(tmp_path / "c.png", names, {"x": [1.0] * 150}, "mse")
    (axes,) = figures[0].axes
    left, right = (t.get_window_extent() for t in axes.get_xticklabels()[10:12])
    assert left.x1 < right.x0
    assert len(axes.get_xticklabels()) == 150


@pytest.mark.parametrize("count", [151, 300, 301, 449])
def test_of_hundreds_of_names_some_are_written_with_both_ends(
    count: int, tmp_path: Path, figures: list[Any]
) -> None:
    draw_curves(tmp_path / "c.png", [str(i) for i in range(count)], {"x": [1.0] * count}, "mse")
    (axes,) = figures[0].axes
    written = [int(tick.get_text()) for tick in axes.get_xticklabels()]
    assert (written[0], written[-1]) == (0, count - 1)
    assert len(written) <= pictures_sheet.MOST_TICKS
    assert min(np.diff(written)) >= count // pictures_sheet.MOST_TICKS
    assert figures[0].get_figwidth() < 26


def test_a_name_beyond_what_a_tick_holds_loses_its_middle() -> None:
    text = pictures_sheet.readable("a" * 40 + "b" * 40)
    assert (len(text), text[0], text[-1], "..." in text) == (60, "a", "b", True)
    assert pictures_sheet.readable("\u5377\u79ef") == "\\u5377\\u79ef"


def test_the_sensitivity_figure_is_the_documented_one(tmp_path: Path, figures: list[Any]) -> None:
    ticks = ["none", "Conv_2", "Conv_7"]
    draw_sensitivity(tmp_path / "s.png", ticks, [None, 0.9, 0.95], [0.8, 0.9, 0.99], "cosine")
    (axes,) = figures[0].axes
    baseline, alone, freed = axes.get_lines()
    assert (baseline.get_linestyle(), baseline.get_ydata()) == ("--", [1.0, 1.0])
    assert to_hex(baseline.get_color()) == pictures_sheet.BLUE.lower()
    assert (alone.get_marker(), alone.get_linestyle()) == ("x", "None")
    assert to_hex(alone.get_color()) == pictures_sheet.GREEN.lower()
    assert alone.get_ydata()[1:].tolist() == [0.9, 0.95]
    assert (freed.get_linestyle(), freed.get_ydata().tolist()) == ("-", [0.8, 0.9, 0.99])
    assert to_hex(freed.get_color()) == pictures_sheet.RED.lower()
    assert axes.get_xticklabels()[0].get_text() == "none"


def test_a_red_line_of_one_point_is_seen_and_says_the_type(
    tmp_path: Path, figures: list[Any]
) -> None:
    draw_sensitivity(tmp_path / "s.png", ["none"], [1.0], [0.9], "cosine", qtype="int16")
    (axes,) = figures[0].axes
    assert axes.get_lines()[2].get_marker() == "."
    assert texts(axes)[2] == "int16: current node and all before"


def test_the_baseline_is_the_perfect_value_of_the_metric(
    tmp_path: Path, figures: list[Any]
) -> None:
    draw_sensitivity(tmp_path / "s.png", ["none"], [0.1], [0.2], "mse", baseline=0.0)
    draw_sensitivity(tmp_path / "t.png", ["none"], [9.0], [8.0], "sqnr", baseline=math.inf)
    assert figures[0].axes[0].get_lines()[0].get_ydata() == [0.0, 0.0]
    assert len(figures[1].axes[0].get_lines()) == 2


def test_triangle_and_line_mark_maximum_and_threshold(tmp_path: Path, figures: list[Any]) -> None:
    panels = [
        Panel("a", counted(-5.0, 1.0, 2.0), 3.0),
        Panel("b", counted(0.5, 4.0), 3.0),
        Panel("error", counted(0.25), is_apart=True),
    ]
    draw_histograms(tmp_path / "h.png", panels, "Conv_2")
    both, positive, error = figures[0].axes
    triangle, up, down = both.get_lines()
    assert (triangle.get_marker(), triangle.get_xdata()[0]) == ("^", -5.0)
    assert to_hex(triangle.get_color()) == pictures_sheet.BLUE.lower()
    assert [line.get_xdata()[0] for line in (up, down)] == [3.0, -3.0]
    assert {line.get_linestyle() for line in (up, down)} == {"--"}
    assert to_hex(up.get_color()) == pictures_sheet.RED.lower()
    assert [line.get_xdata()[0] for line in positive.get_lines()] == [4.0, 3.0]
    assert texts(both) == ["absolute maximum 5", "threshold 3"]
    assert texts(error) == ["absolute maximum 0.25"]
    assert both.get_xlim() == positive.get_xlim() != error.get_xlim()
    (bars,) = both.patches
    assert bars.get_data().values.sum() == 3


def test_a_panel_of_one_value_is_a_bar_beside_its_threshold(
    tmp_path: Path, figures: list[Any]
) -> None:
    panels = [Panel("a", counted(0.0, 0.0), 0.001), Panel("b", counted(), is_apart=True)]
    panels[1].counts.add(np.array([math.nan, math.inf]))
    draw_histograms(tmp_path / "h.png", panels)
    one, none = figures[0].axes
    (bar,) = one.patches
    # float64, one rounding
    assert bar.get_data().edges.tolist() == pytest.approx([-0.05 * 0.001, 0.05 * 0.001])
    assert [text.get_text() for text in none.texts] == ["NaN or infinite: all 2"]


def test_boxes_stand_at_quartiles_median_and_mean(tmp_path: Path, figures: list[Any]) -> None:
    box = Box(-2.0, -1.0, 0.25, 0.5, 1.0, 3.0, (-9.0, 7.0))
    draw_boxes(tmp_path / "b.png", [box, box], "x_HzCalibration")
    (axes,) = figures[0].axes
    boxes, stems, medians, means = axes.collections
    corners = boxes.get_paths()[1].vertices
    assert (corners[:, 1].min(), corners[:, 1].max()) == (-1.0, 1.0)
    assert corners[:, 0].mean() == pytest.approx(1.0, abs=0.3)  # the corner that closes it counts
    assert [s[:, 1].tolist() for s in stems.get_segments()[::2]] == [[1.0, 3.0], [-1.0, -2.0]]
    assert medians.get_segments()[0][:, 1].tolist() == [0.25, 0.25]
    assert means.get_segments()[1][:, 1].tolist() == [0.5, 0.5]
    assert to_hex(medians.get_colors()[0]) == pictures_sheet.RED.lower()
    assert to_hex(means.get_colors()[0]) == pictures_sheet.BLUE.lower()
    assert medians.get_linestyles()[0][1] is None
    assert means.get_linestyles()[0][1] is not None
    (fliers,) = axes.get_lines()
    assert fliers.get_xdata().tolist() == [0, 0, 1, 1]
    assert fliers.get_ydata().tolist() == [-9.0, 7.0] * 2
    low, high = axes.get_ylim()
    assert low < -9 < 7 < high
    assert texts(axes) == ["median", "mean"]


def test_hundreds_of_channels_go_to_rows_of_one_scale(
    tmp_path: Path, saved_figures: list[Any]
) -> None:
    boxes = [Box(-1.0, -0.5, 0.0, 0.0, 0.5, 1.0 + i) for i in range(2 * ROW + 44)]
    (path,) = draw_boxes(tmp_path / "b.png", boxes)
    rows = saved_figures[0].axes
    assert [len(axes.collections[0].get_paths()) for axes in rows] == [ROW, ROW, 44]
    assert len({axes.get_ylim() for axes in rows}) == 1
    assert rows[2].get_xticks()[0] == 2 * ROW
    assert max(size_of(path)) < 2000  # pixels: it fits on a screen


def test_thousands_of_channels_go_to_several_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pictures_boxes.PAGE == 2048
    monkeypatch.setattr(pictures_boxes, "PAGE", 4)
    boxes = [Box(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)] * 5
    paths = draw_boxes(tmp_path / "b.png", boxes)
    assert [path.name for path in paths] == ["b.png", "b_1.png"]


def test_ranges_show_thresholds_of_channels(tmp_path: Path, figures: list[Any]) -> None:
    ranges = Ranges([-1.0, 0.0], [2.0, 5.0], [30.0, math.inf], [2.0, 4.0])
    draw_ranges(tmp_path / "r.png", ranges, "w_HzCalibration", "SQNR, grid (dB)")
    top, below = figures[0].axes
    band, up, down = top.patches
    assert band.get_data().values.tolist() == [2.0, 5.0]
    assert band.get_data().baseline.tolist() == [-1.0, 0.0]
    assert up.get_data().values.tolist() == [2.0, 4.0]
    assert down.get_data().values.tolist() == [-2.0, -4.0]
    assert below.get_lines()[0].get_ydata()[0] == 30.0
    assert all(float(place).is_integer() for place in below.get_xticks())
    assert top.get_ylim()[0] < -4.0


def test_drawing_changes_nothing_of_matplotlib(tmp_path: Path) -> None:
    before = matplotlib.rcParams.copy()
    backend = matplotlib.get_backend(auto_select=False)
    draw_curves(tmp_path / "c.png", ["a"], {"x": [1.0]}, "mse")
    draw_histograms(tmp_path / "h.png", [Panel("a", counted(1.0))])
    assert matplotlib.get_backend(auto_select=False) == backend
    assert matplotlib.rcParams.copy() == before


def test_a_failing_writer_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", fail)
    with pytest.raises(OSError, match="disk full"):
        draw_curves(tmp_path / "c.png", ["a"], {"x": [1.0]}, "mse")
    assert not list(tmp_path.iterdir())

"""tensor_analysis: numbers against NumPy, files, and threads that change nothing."""

from __future__ import annotations

import csv
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qtune.errors import ArgumentError
from qtune.hbir.hz_calibration import apply, calibration_of
from qtune.onnx_debug import tensors
from qtune.onnx_debug.tensors import tensor_analysis, workers
from qtune.onnx_debug.tensors_numbers import Numbers

from . import nets
from .test_distribution import all_values

NODES = ["r_HzCalibration", "w1_HzCalibration", "Conv_2", "Gemm_5"]


def analysed(folder: Path, nodes: Any = NODES, **options: Any) -> tensors.TensorAnalysis:
    return tensor_analysis(
        model_or_file=nets.residual(),
        calibration_data=nets.data(),
        node_names=nodes,
        save_dir=folder,
        **options,
    )


def test_an_activation_has_its_range_and_the_error_of_its_grid(tmp_path: Path) -> None:
    (row,) = analysed(tmp_path, "r_HzCalibration").tensors
    values = all_values("r").astype(np.float64)
    node = next(n for n in nets.residual().graph.node if n.name == "r_HzCalibration")
    held = calibration_of(node)
    error = apply(held, all_values("r")).astype(np.float64) - values
    assert (row.kind, row.tensor, row.channel, row.values) == ("activation", "r", None, 768)
    assert (row.min, row.max, row.not_finite) == (0.0, values.max(), 0)
    assert row.zeros == np.mean(values == 0)
    assert row.clipped == np.mean(values > 4)
    assert (row.bits, row.threshold, row.scale) == (8, 4.0, float(held.scales[0]))
    assert row.p50 == np.median(values)
    assert row.p99_9 == np.quantile(values, 0.999)
    assert row.max_error == np.abs(error).max()
    # sums of float64 in another order
    assert row.mean == pytest.approx(values.mean(), rel=1e-13)
    assert row.std == pytest.approx(values.std(), rel=1e-13)
    assert row.mse == pytest.approx(np.mean(error**2), rel=1e-13)
    expected = 10 * np.log10((values**2).sum() / (error**2).sum())
    # float64, a few roundings of sums
    assert row.sqnr == pytest.approx(expected, rel=1e-13)


def test_an_ordinary_node_has_its_error_in_the_calibrated_model(tmp_path: Path) -> None:
    found = analysed(tmp_path, ["Conv_2", "Gemm_5"]).tensors
    for row, tensor in zip(found, ("c", "y"), strict=True):
        error = all_values(tensor, calibrated=True).astype(np.float64) - all_values(tensor)
        # sums of float64 in another order; the stream may fuse other operators than a run of one
        # tensor, some units in the last place of float32
        assert row.mse == pytest.approx(np.mean(error**2), rel=1e-4)
    conv, gemm = found
    assert (conv.threshold, gemm.threshold, gemm.clipped) == (5.0, None, None)


def test_a_weight_has_a_row_for_each_channel(tmp_path: Path) -> None:
    found = analysed(tmp_path, "w1_HzCalibration")
    weight = nets.weights()["w1"].reshape(4, -1)
    assert [row.channel for row in found.channels] == [0, 1, 2, 3]
    assert [row.max for row in found.channels] == weight.max(axis=1).tolist()
    assert [row.threshold for row in found.channels] == np.abs(weight).max(axis=1).tolist()
    assert {row.clipped for row in found.channels} == {0.0}
    assert found.tensors[0].threshold == np.abs(weight).max()


def test_the_files_hold_the_rows(tmp_path: Path) -> None:
    found = analysed(tmp_path)
    assert {path.name for path in found.files} == {path.name for path in tmp_path.iterdir()}
    assert {path.name for path in tmp_path.iterdir()} == {
        "tensor_analysis.csv",
        "tensor_analysis_channels.csv",
        *(f"{node}_tensor.png" for node in NODES),
    }
    with (tmp_path / "tensor_analysis.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [line["node"] for line in table] == NODES
    assert float(table[0]["max"]) == pytest.approx(found.tensors[0].max, rel=1e-8)  # nine digits
    assert table[3]["threshold"] == ""
    with (tmp_path / "tensor_analysis_channels.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(found.channels) == 4 + 4 + 4 + 5


def test_one_and_two_threads_give_the_same_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensors, "draw_ranges", lambda path, *_: path)
    one = analysed(tmp_path / "1", num_processes=1)
    monkeypatch.setattr(tensors, "workers", lambda *_: 2)
    two = analysed(tmp_path / "2", num_processes=2)
    assert one.tensors == two.tensors
    assert one.channels == two.channels


@pytest.mark.parametrize("count", [1, 2])
def test_as_many_threads_work_as_were_asked_for(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensors, "draw_ranges", lambda path, *_: path)
    monkeypatch.setattr(tensors, "workers", lambda wanted, _: wanted)
    barrier, seen = threading.Barrier(count), set()
    add = Numbers.add

    def together(self: Numbers, *arrays: Any) -> None:
        if threading.get_ident() not in seen:
            seen.add(threading.get_ident())
            barrier.wait(timeout=60)  # reached by all of them, or the test fails
        add(self, *arrays)

    monkeypatch.setattr(Numbers, "add", together)
    analysed(tmp_path, num_processes=count)
    assert len(seen) == count


def test_there_are_no_more_threads_than_nodes_and_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(4)), raising=False)
    assert [workers(16, 9), workers(16, 2), workers(3, 9), workers(1, 1)] == [4, 2, 3, 1]


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, None])
def test_a_number_of_processes_below_one_is_refused(wrong: Any, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="num_processes: expected 1 or more"):
        analysed(tmp_path, num_processes=wrong)


def test_a_value_at_the_threshold_is_not_clipped_by_noise() -> None:
    numbers = Numbers(1, 1, 1)
    limit = np.float32(3.0)
    above = np.nextafter(limit, np.float32(4))
    row = np.array([[limit, -above, 3.001, -4.0]], np.float32)
    numbers.add(row, row, np.array([[limit]]))
    assert numbers.clipped.tolist() == [2]


def test_channels_that_vary_are_measured_as_a_whole_only() -> None:
    from qtune.onnx_debug.distribution_stream import Subject
    from qtune.onnx_debug.tensors_numbers import TensorNumbers

    numbers = TensorNumbers(Subject("Add_0", "node", "y", None, "Add_0"), 2, 1)
    for size in (3, 5, 3):
        numbers.add(np.ones((1, size), np.float32), np.ones((1, size), np.float32))
    (row,) = numbers.rows()
    assert (row.channel, row.values, row.sqnr) == (None, 11, float("inf"))

"""The runner against a session for each choice of nodes, built by hand."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from qtune.errors import ArgumentError, RunError
from qtune.onnx_debug import changes, plan
from qtune.onnx_debug import segments as cutting
from qtune.onnx_debug.data import CalibrationDataSet
from qtune.onnx_debug.load import load_calibrated
from qtune.onnx_debug.runner import Runner

from . import brute, nets, nets_branches

Array = np.ndarray[Any, Any]

ATOL = 2e-5  # float32 sums of up to 256 products of size 1 in another order; a step is 0.02


def runner(proto: onnx.ModelProto, data: list[Any]) -> Runner:
    model = load_calibrated(proto)
    return Runner(model, CalibrationDataSet(data, model.inputs))


@pytest.fixture(params=["one", "two", "each atom"])
def segment_count(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The model as one segment, as two, or each of its atoms as one."""
    starts = {"one": lambda n: [0], "two": lambda n: [0, n // 2], "each atom": lambda n: range(n)}
    choose = starts[request.param]
    monkeypatch.setattr(plan, "cuts", lambda works, *rest: list(choose(len(works))))
    return str(request.param)


def every_choice(names: list[str]) -> list[tuple[str, ...]]:
    alone = [(name,) for name in names]
    without = [tuple(n for n in names if n != name) for name in names]
    return [(), *alone, *itertools.combinations(names, 2), *without, tuple(names)]


@pytest.mark.parametrize(
    ("make", "data"),
    [
        (nets.residual, [{"x": x} for x in nets.data(2)]),
        (nets_branches.branches, nets_branches.feeds()),
    ],
)
def test_each_choice_of_nodes_gives_what_a_session_of_its_own_gives(
    segment_count: str, make: Callable[[], onnx.ModelProto], data: list[dict[str, Array]]
) -> None:
    proto = make()
    run = runner(proto, data)
    for index, feed in enumerate(data):
        for on in every_choice(list(run.model.calibrations)):
            wanted = [port.name for port in run.model.outputs]
            expected = brute.values(proto, on, feed, wanted)
            got = run.values(index, on)
            assert list(got) == wanted
            for name in wanted:
                np.testing.assert_allclose(got[name], expected[name], rtol=0, atol=ATOL)
                assert got[name].dtype == expected[name].dtype


def test_any_tensor_can_be_asked_for(segment_count: str) -> None:
    proto, (feed,) = nets_branches.branches(), nets_branches.feeds(1)
    run = runner(proto, [feed])
    wanted = ["e", "a", "a_q", "w_q", "c", "is_up"]
    on = list(run.model.calibrations)
    expected = brute.values(proto, on, feed, wanted)
    got = run.values(0, on, [*wanted, "x"])
    for name in wanted:
        np.testing.assert_allclose(got[name], expected[name], rtol=0, atol=ATOL)
    np.testing.assert_array_equal(got["x"], feed["x"])


def test_stream_gives_both_sides_of_all_tensors_in_order(segment_count: str) -> None:
    proto, (feed,) = nets_branches.branches(), nets_branches.feeds(1)
    run = runner(proto, [feed])
    on = ["a_HzCalibration", "w_HzCalibration"]
    rows = list(run.stream(0, on))
    names = [name for name, _, _ in rows]
    assert names == [name for node in run.model.nodes for name in node.outputs]
    plain = brute.values(proto, (), feed, names)
    expected = brute.values(proto, on, feed, names)
    for name, left, right in rows:
        np.testing.assert_allclose(left, plain[name], rtol=0, atol=ATOL)
        np.testing.assert_allclose(right, expected[name], rtol=0, atol=ATOL)


def test_streams_that_take_turns_do_not_disturb_each_other(segment_count: str) -> None:
    run = runner(nets_branches.branches(), nets_branches.feeds(2))
    everything = list(run.model.calibrations)
    alone = [list(run.stream(index, everything)) for index in range(2)]
    together = zip(run.stream(0, everything), run.stream(1, everything), strict=True)
    for place, rows in enumerate(together):
        for index, (name, left, right) in enumerate(rows):
            assert name == alone[index][place][0]
            np.testing.assert_array_equal(left, alone[index][place][1])
            np.testing.assert_array_equal(right, alone[index][place][2])


def test_what_was_run_before_changes_no_bit(segment_count: str) -> None:
    proto, data = nets.residual(), nets.data(2)
    on = ["r_HzCalibration", "w1_HzCalibration"]
    fresh = runner(proto, data).values(1, on)["y"]
    used = runner(proto, data)
    for name in used.model.calibrations:
        used.values(0, [name])
        list(used.stream(1, [name]))
    np.testing.assert_array_equal(used.values(1, on)["y"], fresh)


def test_a_node_that_changes_nothing_gives_the_float_output_itself(segment_count: str) -> None:
    proto = nets.residual()
    for tensor in proto.graph.initializer:
        if tensor.name == "w1":  # on the grid of w1_HzCalibration: 2**-7, codes -3 to 3
            codes = np.random.default_rng(0).integers(-3, 4, tuple(tensor.dims))
            tensor.CopyFrom(numpy_helper.from_array((codes / 128).astype(np.float32), "w1"))
    for node in proto.graph.node:
        if node.name == "w1_HzCalibration":
            del node.attribute[:]
            given = {"axis": -1, "bits": 8, "scales": [2.0**-7], "thresholds": [1.0]}
            node.attribute.extend(helper.make_attribute(k, v) for k, v in given.items())
    run = runner(proto, nets.data(1))
    plain = run.values(0)["y"]
    assert run.values(0, ["w1_HzCalibration"])["y"] is plain


def test_a_long_float_run_is_made_again(
    segment_count: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensors between atoms that are too many to keep."""
    proto, data = nets.residual(), nets.data(1)
    names = list(load_calibrated(proto).calibrations)
    kept = [runner(proto, data).values(0, [name])["y"] for name in names]
    monkeypatch.setattr(changes, "_KEPT_BYTES", 0)
    run = runner(proto, data)
    for name, expected in zip(names, kept, strict=True):
        got = run.values(0, [name])["y"]
        np.testing.assert_allclose(got, expected, rtol=0, atol=ATOL)
        list(run.stream(0, [name]))
        np.testing.assert_array_equal(run.values(0, [name])["y"], got)


def test_the_model_and_the_arrays_stay_as_they_were() -> None:
    proto, data = nets.residual(), nets.data(1)
    before, copy = proto.SerializeToString(deterministic=True), data[0].copy()
    run = runner(proto, data)
    run.values(0, list(run.model.calibrations))
    assert proto.SerializeToString(deterministic=True) == before
    np.testing.assert_array_equal(data[0], copy)


def test_unknown_nodes_and_tensors_are_named() -> None:
    run = runner(nets.residual(), nets.data(1))
    with pytest.raises(ArgumentError, match="no calibration nodes of the model: q_HzCalibration"):
        run.values(0, ["q_HzCalibration"])
    with pytest.raises(ArgumentError, match="no tensors of the model: nowhere"):
        run.values(0, (), ["nowhere"])


def test_what_onnxruntime_refuses_is_told_with_the_nodes() -> None:
    proto = nets.residual()
    bias = next(tensor for tensor in proto.graph.initializer if tensor.name == "b1")
    bias.CopyFrom(numpy_helper.from_array(np.zeros(7, np.float32), "b1"))
    with pytest.raises(RunError, match="onnxruntime .* the node Conv_2: "):
        runner(proto, nets.data(1)).values(0)


def test_cuts_are_where_little_crosses_and_only_where_they_pay() -> None:
    works, none = [10**9] * 6, [0] * 6
    assert cutting.cuts(works, none, [1] * 6, none) == list(range(6))  # many run the last ones
    assert cutting.cuts(works, none, [0] * 5 + [1], none) == list(range(6))  # a session costs more
    wide = [0, 10**7, 100, 10**7, 10**7, 100]
    assert cutting.cuts([10**8] * 6, wide, [1] * 6, none) == [0, 1, 2]


def test_weights_that_each_session_packs_are_packed_once() -> None:
    works, wide = [10**8] * 6, [0, 10**7, 100, 10**7, 10**7, 100]
    heavy = [0, 0, 0, 0, 10**8, 0]  # the session of a larger segment would pack them a second time
    starts = cutting.cuts(works, wide, [1] * 6, heavy)
    assert {4, 5} <= set(starts)

"""``get_sensitivity_of_nodes`` against sessions built by hand; its tables and errors."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qtune.errors import ArgumentError
from qtune.onnx_debug import CalibrationDataSet, get_sensitivity_of_nodes, load_calibrated
from qtune.onnx_debug.metrics import METRICS

from . import brute, nets, nets_branches, nets_qdq

KINDS = ("node", "weight", "activation")
TOLERANCE = 1.1e-5  # 5 decimals, and float32 sums in another order


@pytest.mark.parametrize("kind", KINDS)
def test_each_node_alone_against_a_session_of_its_own(kind: str) -> None:
    proto, data = nets.residual(), nets.data(3)
    model = load_calibrated(proto)
    got = get_sensitivity_of_nodes(
        proto, ["cosine-similarity", "mse"], data, node_type=kind, data_num=None
    )
    expected = {}
    for name in model.names(kind):
        on = model.node(name).calibrations if kind == "node" else (name,)
        pairs = []
        for x in data:
            plain = brute.values(proto, (), {"x": x}, ["y"])["y"]
            pairs.append((plain, brute.values(proto, on, {"x": x}, ["y"])["y"]))
        expected[name] = {
            "cosine-similarity": np.mean([brute.cosine(*pair) for pair in pairs]),
            "mse": np.mean([brute.mse(*pair) for pair in pairs]),
        }
    assert list(got) == sorted(expected, key=lambda name: expected[name]["cosine-similarity"])
    for name, values in expected.items():
        assert got[name] == pytest.approx(values, abs=TOLERANCE)


@pytest.mark.parametrize("metric", METRICS)
def test_the_first_metric_sorts_worst_first(metric: str) -> None:
    others = [name for name in METRICS if name != metric]
    got = get_sensitivity_of_nodes(nets.residual(), [metric, *others], nets.data(1))
    values = [row[metric] for row in got.values()]
    better_is_larger = metric in ("cosine-similarity", "sqnr")
    assert values == sorted(values, reverse=not better_is_larger)
    assert all(list(row) == [metric, *others] for row in got.values())
    assert all(type(value) is float for row in got.values() for value in row.values())


def test_the_worst_output_counts() -> None:
    proto, (feed,) = nets_branches.branches(), nets_branches.feeds(1)
    got = get_sensitivity_of_nodes(proto, "chebyshev", [feed], node_type="activation")
    names = ["y_q", "k", "z"]
    plain = brute.values(proto, (), feed, names)
    for name in ("u_HzCalibration", "x_HzCalibration", "y_HzCalibration"):
        other = brute.values(proto, (name,), feed, names)
        worst = max(float(np.abs(plain[n] - other[n]).max()) for n in names)
        assert got[name]["chebyshev"] == pytest.approx(worst, abs=TOLERANCE)


def test_an_ordinary_node_can_be_the_output() -> None:
    proto, (x,) = nets.residual(), nets.data(1)
    got = get_sensitivity_of_nodes(proto, "mse", [x], output_node="Add_3")
    on = load_calibrated(proto).node("Conv_0").calibrations
    expected = brute.mse(
        brute.values(proto, (), {"x": x}, ["s"])["s"], brute.values(proto, on, {"x": x}, ["s"])["s"]
    )
    assert got["Conv_0"]["mse"] == pytest.approx(expected, abs=TOLERANCE)
    assert got["Gemm_5"]["mse"] == 0.0  # it stands behind the output, and is not run


def test_interested_nodes_are_of_any_type_and_overrule_the_type() -> None:
    names = ["w1_HzCalibration", "Conv_0", "r_HzCalibration"]
    got = get_sensitivity_of_nodes(
        nets.residual(), calibrated_data=nets.data(1), node_type="weight", interested_nodes=names
    )
    assert sorted(got) == sorted(names)
    one = get_sensitivity_of_nodes(
        nets.residual(), calibrated_data=nets.data(1), interested_nodes="Conv_0"
    )
    assert one == {"Conv_0": got["Conv_0"]}


def test_data_num_takes_the_first_items() -> None:
    proto, data = nets.residual(), nets.data(3)
    each = [get_sensitivity_of_nodes(proto, "mse", [x])["Conv_0"]["mse"] for x in data]
    two = get_sensitivity_of_nodes(proto, "mse", data, data_num=2)["Conv_0"]["mse"]
    assert two == pytest.approx((each[0] + each[1]) / 2, abs=TOLERANCE)
    assert get_sensitivity_of_nodes(proto, "mse", data)["Conv_0"]["mse"] == each[0]


def test_two_runs_give_the_same_numbers() -> None:
    runs = [get_sensitivity_of_nodes(nets.residual(), "mse", nets.data(2)) for _ in range(2)]
    assert list(runs[0].items()) == list(runs[1].items())


def test_pairs_of_a_standard_model_are_switched_but_stored_codes_are_always_on() -> None:
    own, (x,) = nets.residual(), nets.data(1)
    proto = nets_qdq.as_pairs(own, stored="w2")
    model = load_calibrated(proto)
    stored = [item.name for item in model.calibrations.values() if item.is_stored]
    assert stored == ["w2_HzCalibration"]
    for kind in KINDS:
        got = get_sensitivity_of_nodes(proto, "mse", [x], node_type=kind)
        assert set(got) == set(load_calibrated(own).names(kind)) - set(stored)
        for name, row in got.items():
            on = model.node(name).calibrations if kind == "node" else (name,)
            expected = [
                brute.values(proto, nodes, {"x": x}, ["y"])["y"]
                for nodes in (nets_qdq.pairs_of(stored), nets_qdq.pairs_of([*stored, *on]))
            ]
            assert row["mse"] == pytest.approx(brute.mse(*expected), abs=TOLERANCE)
    with pytest.raises(ArgumentError, match="nothing can be switched at w2_HzCalibration"):
        get_sensitivity_of_nodes(proto, "mse", [x], interested_nodes="w2_HzCalibration")


def table_of(caplog: pytest.LogCaptureFixture, **kwargs: Any) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.INFO):
        get_sensitivity_of_nodes(nets.residual(), verbose=True, **kwargs)
    (record,) = [r for r in caplog.records if r.name == "qtune.onnx_debug.sensitivity"]
    assert record.levelno == logging.INFO
    return record.getMessage().strip().splitlines()


def test_the_table_of_nodes(caplog: pytest.LogCaptureFixture) -> None:
    data = nets.data(1)
    lines = table_of(caplog, metrics=["cosine-similarity", "mse"], calibrated_data=data)
    got = get_sensitivity_of_nodes(nets.residual(), ["cosine-similarity", "mse"], data)
    assert lines[0].strip("=") == "node sensitivity"
    assert len(lines[2]) - len(lines[0]) in (0, 1)
    assert lines[1].split() == ["node", "cosine-similarity", "mse"]
    assert set(lines[2]) == {"-"}
    rows = [line.split() for line in lines[3:]]
    assert rows == [[name, *(str(value) for value in row.values())] for name, row in got.items()]


def test_the_tables_of_calibration_nodes(caplog: pytest.LogCaptureFixture) -> None:
    lines = table_of(caplog, calibrated_data=nets.data(1), node_type="weight")
    assert lines[1].split() == ["weight", "node", "cosine-similarity"]
    assert {tuple(line.split()[:2]) for line in lines[3:]} == {
        ("w0_HzCalibration", "Conv_0"),
        ("w1_HzCalibration", "Conv_2"),
        ("w2_HzCalibration", "Gemm_5"),
    }
    lines = table_of(caplog, calibrated_data=nets.data(1), node_type="activation")
    assert lines[1].split() == ["activation", "node", "threshold", "bit", "cosine-similarity"]
    assert "r_HzCalibration  Conv_2;Add_3  4.0        8    " in "\n".join(lines)


def test_without_handlers_the_table_is_shown_on_the_screen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    data = nets.data(1)
    get_sensitivity_of_nodes(nets.residual(), calibrated_data=data, verbose=True)
    assert capsys.readouterr().out == ""  # the level is WARNING
    logging.getLogger("qtune.onnx_debug").setLevel(logging.INFO)
    try:
        get_sensitivity_of_nodes(nets.residual(), calibrated_data=data, verbose=True)
    finally:
        logging.getLogger("qtune.onnx_debug").setLevel(logging.NOTSET)
    assert "=node sensitivity=" in capsys.readouterr().out


@pytest.mark.parametrize("kind", KINDS)
def test_the_table_is_written_where_runall_writes_it(tmp_path: Path, kind: str) -> None:
    get_sensitivity_of_nodes(
        nets.residual(), calibrated_data=nets.data(1), node_type=kind, save_dir=tmp_path
    )
    (file,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert file == tmp_path / "node_sensitivity" / f"sensitivity_of_{kind}.log"
    assert "=node sensitivity=" in file.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"metrics": "cosine"}, r"metrics: expected one of cosine-similarity, mse.*'cosine'"),
        ({"metrics": []}, "metrics: expected the name of a metric or a list"),
        ({"node_type": "bias"}, "node_type: expected one of node, weight, activation; got 'bias'"),
        ({"calibrated_data": None}, "calibrated_data: it is needed"),
        ({"data_num": 3}, "data_num must be 1 to 2"),
        ({"interested_nodes": "Conv_1"}, "interested_nodes: .*'Conv_1'.* Conv_2"),
        ({"interested_nodes": "Relu_1"}, "nothing can be switched at Relu_1"),
        ({"output_node": "Relu_1"}, "output_node: Relu_1 has no calibration node.* 4 nodes"),
        ({"output_node": "x_HzCalibration"}, "output_node: x_HzCalibration is an? calibration"),
    ],
)
def test_wrong_arguments_get_one_clear_error(arguments: dict[str, Any], message: str) -> None:
    given = {"calibrated_data": nets.data(2)} | arguments
    with pytest.raises(ArgumentError, match=message):
        get_sensitivity_of_nodes(nets.residual(), **given)


def test_a_data_set_is_taken_as_it_is() -> None:
    model = load_calibrated(nets.residual())
    data = CalibrationDataSet(nets.data(2), model.inputs)
    got = get_sensitivity_of_nodes(model, calibrated_data=data)
    assert got == get_sensitivity_of_nodes(nets.residual(), calibrated_data=nets.data(2))

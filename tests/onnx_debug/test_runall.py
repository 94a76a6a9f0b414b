"""runall: six steps, the documented folders, and what each parameter changes."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qtune.errors import ArgumentError
from qtune.onnx_debug import command, runall_steps, runner
from qtune.onnx_debug.load import load_calibrated
from qtune.onnx_debug.sensitivity import get_sensitivity_of_nodes

from . import nets

WEIGHTS = ["w0", "w1", "w2"]
ACTIVATIONS = ["c", "f", "r", "x"]


def files(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def pictures(tensors: list[str]) -> list[str]:
    return [
        name
        for tensor in sorted(tensors)
        for name in (
            f"channelwise_distribution/{tensor}_HzCalibration_channelwise.png",
            f"data_distribution/{tensor}_HzCalibration_distribution.png",
        )
    ]


def run(folder: Path, **options: Any) -> runall_steps.RunAll:
    return runall_steps.runall(
        model_or_file=nets.residual(), calibrated_data=nets.data(), save_dir=folder, **options
    )


def counted_runners(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The models of all runners that are made from now on."""
    made: list[Any] = []
    init = runner.Runner.__init__

    def count(self: Any, *arguments: Any) -> None:
        made.append(arguments[0])
        init(self, *arguments)

    monkeypatch.setattr(runner.Runner, "__init__", count)
    return made


def test_by_default_weights_and_activations_are_ranked_and_drawn(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = counted_runners(monkeypatch)
    with caplog.at_level(logging.INFO, "qtune.onnx_debug.runall_steps"):
        found = run(tmp_path)
    assert len(made) == 1  # the model is loaded once
    assert files(tmp_path) == sorted(
        [
            "accumulate_error/accumulated_error.png",
            "node_sensitivity/sensitivity_of_activation.log",
            "node_sensitivity/sensitivity_of_weight.log",
            "sensitivity_analysis/sensitivity_analysis.png",
            *pictures(WEIGHTS + ACTIVATIONS),
        ]
    )
    assert [p.relative_to(tmp_path).as_posix() for p in found.files] == files(tmp_path)
    for kind in ("weight", "activation"):
        alone = get_sensitivity_of_nodes(
            nets.residual(), calibrated_data=nets.data(), node_type=kind, data_num=None
        )
        assert list(found.sensitivity[kind].items()) == list(alone.items())
    said = [r.getMessage().split(":")[0] for r in caplog.records if r.name.endswith("runall_steps")]
    assert said == ["steps 1 and 2"] * 2 + [f"step {i}" for i in (3, 4, 5, 6)]


@pytest.mark.usefixtures("empty_pictures")
def test_with_nodes_the_calibration_nodes_that_feed_them_are_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runall_steps, "TOP", 1)
    found = run(tmp_path, node_type="node", data_num=1)
    (kind,) = found.sensitivity
    first = next(iter(found.sensitivity[kind]))
    assert (kind, first) == ("node", "Conv_2")
    drawn = [name for name in files(tmp_path) if "distribution" in name]
    assert drawn == sorted(pictures(["r", "w1"]))
    assert "node_sensitivity/sensitivity_of_node.log" in files(tmp_path)


@pytest.mark.usefixtures("empty_pictures")
def test_only_the_five_worst_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert runall_steps.TOP == 5
    monkeypatch.setattr(runall_steps, "TOP", 2)
    found = run(tmp_path, node_type="activation")
    worst = list(found.sensitivity["activation"])[:2]
    drawn = [name for name in files(tmp_path) if "distribution" in name]
    assert drawn == sorted(pictures([name.removesuffix("_HzCalibration") for name in worst]))


def test_each_parameter_reaches_its_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, dict[str, Any]] = {}

    def keep(name: str) -> Any:
        def called(**options: Any) -> dict[str, Any]:
            seen[name] = options
            return {}

        return called

    steps = (
        "get_sensitivity_of_nodes",
        "plot_distribution",
        "get_channelwise_data_distribution",
        "plot_acc_error",
        "sensitivity_analysis",
    )
    for name in steps:
        monkeypatch.setattr(runall_steps, name, keep(name))
    run(
        tmp_path,
        ns_metrics=["mse", "sqnr"],
        output_node="Conv_2",
        node_type="weight",
        data_num=2,
        verbose=True,
        interested_nodes=["Conv_0"],
        dis_nodes_list=["Conv_2", "Relu_1"],
        cw_nodes_list="x_HzCalibration",
        axis=2,
        non_quantize_node=[["Conv_0"], ["Conv_0", "Conv_2"]],
        ae_metric="mse",
        average_mode=True,
        pick_threshold=0.5,
        sensitive_nodes=["Gemm_5"],
    )
    expected = {
        "get_sensitivity_of_nodes": {
            "metrics": ["mse", "sqnr"],
            "output_node": "Conv_2",
            "data_num": 2,
            "verbose": True,
            "interested_nodes": ["Conv_0"],
        },
        "plot_distribution": {"nodes_list": ["Conv_2", "Relu_1"]},
        "get_channelwise_data_distribution": {"nodes_list": ["x_HzCalibration"], "axis": 2},
        "plot_acc_error": {
            "quantize_node": None,
            "non_quantize_node": [["Conv_0"], ["Conv_0", "Conv_2"]],
            "metric": "mse",
            "average_mode": True,
        },
        "sensitivity_analysis": {
            "pick_threshold": 0.5,
            "sensitive_nodes": ["Gemm_5"],
            "data_num": 2,
        },
    }
    assert seen.keys() == expected.keys()
    for name, options in expected.items():
        assert seen[name].items() >= options.items()


def test_the_default_curves_are_weights_and_activations(tmp_path: Path, figures: list[Any]) -> None:
    run(tmp_path, node_type="weight", data_num=1, dis_nodes_list="Conv_2")
    titles = [figure.axes[0].get_title() for figure in figures]
    assert titles[0] == "float output"
    assert [title.partition(" ")[0] for title in titles[1:3]] == [
        "r_HzCalibration",
        "w1_HzCalibration",
    ]
    assert titles[3:] == ["accumulated error", "sensitivity analysis"]
    (axes,) = figures[3].axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["weight", "activation"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"node_type": "conv"}, "node_type: expected one of node, weight, activation or None"),
        ({"dis_nodes_list": ["Conv_9"]}, "dis_nodes_list.*'Conv_9'"),
        ({"cw_nodes_list": ["Conv_2"]}, "cw_nodes_list: Conv_2 is an ordinary node"),
        ({"quantize_node": [["Conv_2"], ["Conv_9"]]}, "quantize_node.*'Conv_9'"),
        ({"non_quantize_node": "Conv_9"}, "non_quantize_node.*'Conv_9'"),
        ({"quantize_node": "Conv_2", "non_quantize_node": "Conv_0"}, "only one of"),
        ({"sensitive_nodes": ["Conv_9"]}, "sensitive_nodes.*'Conv_9'"),
        ({"interested_nodes": ["Conv_9"]}, "interested_nodes.*'Conv_9'"),
        ({"output_node": "Relu_1"}, "output_node: Relu_1 has no calibration node"),
        ({"ns_metrics": ["mse", "l2"]}, "ns_metrics: expected one of .*; got 'l2'"),
        ({"ae_metric": "l2"}, "ae_metric: expected one of .*; got 'l2'"),
        ({"data_num": 9}, "data_num must be 1 to 3"),
        ({"axis": "1"}, "axis: expected a whole number or None"),
        ({"pick_threshold": float("nan")}, "pick_threshold: expected a number"),
        ({"verbose": "yes"}, "verbose: expected True or False, got 'yes'"),
        ({"average_mode": 1}, "average_mode: expected True or False, got 1"),
        ({"save_dir": ""}, "save_dir: expected the path of a folder"),
    ],
)
def test_what_is_wrong_is_said_before_the_first_step(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ArgumentError, match=message):
        run(options.pop("save_dir", tmp_path / "out"), **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("empty_pictures")
def test_the_command_runs_all_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(nets.residual(), "model.onnx")
    (tmp_path / "data" / "x").mkdir(parents=True)
    np.save(tmp_path / "data" / "x" / "0.npy", nets.data(1)[0])
    words = ["model.onnx", "data", "-nt", "weight", "-v", "True", "-qn", "[Conv_2]", "-s", "out"]
    assert command.main(["runall", *words]) == 0
    out, err = capsys.readouterr()
    table = (tmp_path / "out" / "node_sensitivity" / "sensitivity_of_weight.log").read_text()
    assert table in out
    assert out.count("wrote out/") == len(files(tmp_path / "out"))
    assert [line.partition(":")[0] for line in err.splitlines()][:2] == ["steps 1 and 2", "step 3"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "model.onnx", "out"]
    assert load_calibrated("model.onnx").names("weight") == [f"{w}_HzCalibration" for w in WEIGHTS]

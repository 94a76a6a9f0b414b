"""Each complete example of the documents, with its own import lines, through ``qtune.compat``."""

from __future__ import annotations

import csv
import logging
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from qtune.compat.report import compat_report

from .conftest import SCRIPTS, Script

ALL = sorted(path.name for path in SCRIPTS.glob("[a-z]*.py"))
TRACED = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
"""The documents trace models, which torch calls deprecated."""


def files(folder: str) -> set[str]:
    return {path.name for path in Path(folder).iterdir()}


@pytest.mark.parametrize("name", ALL)
def test_every_name_of_a_script_exists(name: str) -> None:
    report = compat_report([SCRIPTS / name])
    assert report, [use.name for use in report.missing]
    assert any(use.name.startswith(("horizon", "hbdk4", "hmct")) for use in report.names)


def test_quick_start_of_the_tuning_tool(script: Script) -> None:
    found = script("quick_start.py")
    (table,) = found["table"][""]
    assert {(row[0], row[2]) for row in table.rows} == {
        ("conv", "weight"),
        ("quant", "output"),
        ("relu", "output"),
    }
    assert {"output__case_0_sensitive_ops.csv", "sensitivity_v2_report.html"} <= files("floatvsqat")
    assert "output__tuned_case_0_sensitive_ops.csv" in files("floatvsqat")
    with Path("qatvshbir/compare_per_layer_out_0.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["ATOL"]) for row in rows] == [0.0] * 5  # export changes no number
    assert files(".") == {"run", "calib.pt", "floatvsqat", "qatvshbir"}


def test_losses_as_metrics(script: Script) -> None:
    found = script("loss_metrics.py")
    assert list(found["report"].output_to_badcase_info)[0] == "all"
    assert found["ranking"]["all"][0].columns[5] == "GRAD_X_ERROR"
    assert len(found["ablation"]["all"]) == 2  # the two worst
    assert any("tuned_case" in name for name in files("losses"))


def test_several_processes_find_the_names_and_gloo(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "qtune.compat", str(SCRIPTS / "quant_analysis_ddp.py")]
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    options = ["--nproc_per_node", "2", "--master_port", port, "--output_dir", "out"]
    done = subprocess.run(
        [*line, *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,  # two processes that wait for each other for ever
    )
    assert done.returncode == 0, done.stderr
    assert "processes: 2" in done.stdout
    assert done.stderr.count("init_process_group('nccl') uses gloo") == 1
    assert done.stderr.count("torch.cuda.set_device(0) has no effect") == 1
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"badcase_report.html", "compare_per_layer_out_0.csv"} <= written
    assert "output__case_mean_sensitive_ops.csv" in written


def test_the_heterogeneous_model(script: Script) -> None:
    found = script("hybrid_model.py")
    assert found["on_bpu"] == ["conv0", "conv2", "conv4"]
    assert found["quantized_result"].shape == found["float_result"].shape
    import onnx

    model = onnx.load("qat.onnx")
    assert {"Selu", "QuantizeLinear"} <= {node.op_type for node in model.graph.node}
    assert {node.domain for node in model.graph.node} <= {"", "ai.onnx"}  # standard operators only
    _build_from_its_grids(found)


def _build_from_its_grids(found: dict[str, Any]) -> None:
    """The exported file through ``build_model``: what ran on the BPU does, the rest does not."""
    pytest.importorskip("onnxruntime")
    from qtune.onnx_debug import build_model

    load = {"model_config": {"activation": {"calibration_type": "load"}}}
    options = {"save_model": False, "verbose": False, "return_builder": True}
    result = build_model("qat.onnx", "bayes-e", None, load, **options)
    on = {row.node: row.on for row in result.nodes if row.node_type == "Conv"}
    bpu = {f"/{name}/Conv" for name in found["on_bpu"]}
    assert {name for name, place in on.items() if place == "BPU"} == bpu
    assert len(on) == 5
    (got,) = result.quantized[0].feed({"x.1": found["data"].numpy()}).values()
    with torch.no_grad():
        wanted = found["qat_model"].eval()(found["data"]).numpy()
    # pairs round ties to even and a requantize rounds once where floats round twice: a code off
    # here and there, as between the converted model and the trained one
    assert abs(got - wanted).max() <= 0.05 * abs(wanted).max()


def test_calibration_then_qat(script: Script, capsys: pytest.CaptureFixture[str]) -> None:
    found = script("calibration_then_qat.py")
    # four bright levels of 64 images: all stages separate them, but for two images at a border
    for stage in ("float", "calib", "qat", "quantized"):
        assert found[f"{stage}_accuracy"] >= 62 / 64
    assert found["qat_model"].classifier.activation_post_process is None  # high precision
    assert "quantized" in capsys.readouterr().out


def test_choices_of_qconfigs(script: Script) -> None:
    from qtune import qint8, qint16

    found = script("qconfig_choices.py")

    def dtype(model: Any, name: str) -> Any:
        quantizer = model.get_submodule(name).activation_post_process
        return None if quantizer is None else quantizer.dtype

    attribute = [dtype(model, "op_1") for model in found["by_attribute"].values()]
    assert attribute == [
        *(qint8, qint16, None, qint8, qint8),
        *(qint8, qint16, qint16, None, qint16),
    ]
    template = found["by_template"]
    for name in ("calibration", "qat 16", "fixed 16"):
        assert dtype(template[name], "op_1") == qint16
    assert dtype(template["qat"], "op_1") == dtype(template["fixed"], "op_1") == qint8
    assert dtype(template["by name"], "op_1") == qint8
    fixed = template["by name"].get_submodule("op_2").activation_post_process
    assert fixed is None or fixed.dtype == qint16
    for name in ("sensitive calibration", "sensitive qat"):
        ports = [getattr(m, "dtype", None) for _, m in template[name].named_modules()]
        assert qint16 in ports


def test_the_older_tuning_example(script: Script) -> None:
    found = script("older_tuning.py")
    assert {row[1] for row in found["ranking"][""]} == {"output", "weight"}
    assert {"badcase.pt", "badcase.txt", "compare_per_layer_out_0.csv"} <= files("floatvsqat")
    assert "compare_per_layer_out_0.csv" in files("qatvsquantized")
    assert "op_infos" not in files("qatvsquantized")  # clean
    assert {"statistic.txt", "tensorboard"} <= files("profiler_dir")


@TRACED
def test_the_eager_flow_of_the_article(script: Script) -> None:
    found = script("article_eager.py")
    assert (found["verdict"], found["status"]) == (0, 0)
    assert Path("model.hbm").stat().st_size > 0
    assert found["called"]["bbox_head.loss_xy"] == 0
    assert sum(map(len, found["unfused"])) == 12  # 3 times conv-norm-relu, 1 conv-norm-add
    assert any(Path("perf").iterdir())
    assert Path("horizon_quant_debug/profiler.html").exists()


def test_the_fx_flow_of_the_article(script: Script) -> None:
    from qtune import qint16

    found = script("article_fx.py")
    wide = found["qat_model"].wide.activation_post_process
    assert wide.dtype == qint16
    assert found["qat_model"].head.activation_post_process is None
    steps = (found["quantized"] - found["calibrated"]).abs().max()
    # one step of training and another arithmetic: within a tenth of the range
    assert steps <= 0.1 * found["calibrated"].abs().max()


def test_each_step_of_the_practice_article(script: Script) -> None:
    found = script("profiler_practice.py")
    assert list(found["rows"]) == ["det", "seg"]
    assert torch.equal(found["float_pt"].back(found["opinfo"].input[0]), found["opinfo"].output[0])
    for folder in ("float_vs_calib", "qatpt_vs_qatexportpt"):
        assert "output_det_case_0_ATOL_sensitive_ops.txt" in files(folder)
    with Path("pre_export_pt_vs_qatbc/compare_per_layer_out_0.csv").open() as file:
        assert {float(row["ATOL"]) for row in csv.DictReader(file)} == {0.0}
    assert found["hbm"].march == "nash-e"
    assert "statistic.txt" in files("hbir_dir")


@TRACED
def test_torchscript_files(script: Script) -> None:
    found = script("jit_files.py")
    assert torch.equal(found["found"], found["expected"])
    assert torch.equal(found["summed"], torch.ones(2, 3, 3, 3))


def test_the_onnx_debugger(script: Script, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("matplotlib")
    level = logging.getLogger().level
    try:
        found = script("onnx_debugger.py")
    finally:
        logging.getLogger().setLevel(level)
    message = found["node_message"]
    assert list(message) == ["Conv_2", "Conv_0", "Add_3"]  # worst first
    assert set(message["Conv_2"]) == {"cosine-similarity", "mse"}
    assert "=node sensitivity=" in caplog.text  # verbose=True
    assert set(found["weights"]) == {"Conv_0.w_HzCalibration", "Conv_2.w_HzCalibration"}
    assert set(found["activations"]) == {"input.1_HzCalibration", "b_HzCalibration"}
    assert found["quantized"].functions[0].inputs[0].name == "input.1"
    assert files("debug_result") == {
        *("accumulate_error", "channelwise_distribution", "data_distribution"),
        *("node_sensitivity", "sensitivity_analysis"),
    }
    for number in range(5):
        assert files(f"acc_error_{number}") == {"accumulated_error.png"}

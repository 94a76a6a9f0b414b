"""The toolchain's yaml: what is honoured, what is said to have no effect, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qtune.errors import ArgumentError
from qtune.onnx_debug.build.toolchain_file import ToolchainFile, read_toolchain_file

yaml = pytest.importorskip("yaml")


def read(folder: Path, content: dict[str, Any]) -> ToolchainFile:
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(content))
    return read_toolchain_file(path)


def whole(folder: Path) -> dict[str, Any]:
    (folder / "data").mkdir(exist_ok=True)
    np.save(folder / "data/0.npy", np.zeros(1, np.float32))
    return {
        "model_parameters": {
            "onnx_model": "net.onnx",
            "march": "nash-m",
            "working_dir": "out",
            "output_model_file_prefix": "net",
            "debug_mode": "dump_calibration_data",
            "node_info": {"fc": {"ON": "BPU", "InputType": "int16", "InputType1": "int8"}},
        },
        "input_parameters": {"input_name": "x", "input_shape": "1x3x8x8", "input_type_rt": "nv12"},
        "calibration_parameters": {
            "cal_data_dir": "./data",
            "calibration_type": "kl",
            "optimization": "set_model_output_int16",
            "run_on_cpu": "a;b",
        },
        "compiler_parameters": {"core_num": 2},
    }


def test_known_keys_become_arguments(tmp_path: Path) -> None:
    found = read(tmp_path, whole(tmp_path))
    assert found.arguments == {
        "onnx_model": str(tmp_path / "net.onnx"),
        "name_prefix": str(tmp_path / "out/net"),
        "march": "nash-m",
        "debug_methods": "dump_calibration_data",
        "input_dict": {"x": {"input_shape": [1, 3, 8, 8]}},
        "quant_config": {
            "node_config": {
                "fc": {"qtype": "int16", "input1": "int8"},
                "a": {"qtype": "float32"},
                "b": {"qtype": "float32"},
            },
            "model_config": {"activation": {"calibration_type": "kl"}},
        },
        "optimization_methods": "set_model_output_int16",
        "cali_data": {"x": str(tmp_path / "data")},
    }


def test_keys_of_the_board_are_named_as_without_effect(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = read(tmp_path, whole(tmp_path))
    assert found.ignored == ("input_parameters.input_type_rt", "compiler_parameters.core_num")
    assert "input_parameters.input_type_rt, compiler_parameters.core_num" in caplog.text


def test_load_needs_no_data(tmp_path: Path) -> None:
    content = whole(tmp_path)
    content["calibration_parameters"] = {"calibration_type": "load"}
    found = read(tmp_path, content).arguments
    assert "cali_data" not in found
    level = found["quant_config"]["model_config"]["activation"]
    assert level == {"calibration_type": "load"}


def test_skip_takes_random_data(tmp_path: Path) -> None:
    content = whole(tmp_path)
    content["calibration_parameters"] = {"calibration_type": "skip"}
    assert "cali_data" not in read(tmp_path, content).arguments


@pytest.mark.parametrize(
    ("group", "key", "value", "message"),
    [
        ("model_parameters", "onnx_modle", "a", "no key 'onnx_modle'; close matches: onnx_model"),
        ("calibration_parameters", "calibration_type", "klm", "expected one of default, max, perc"),
        ("calibration_parameters", "cal_data_dir", 5, "cal_data_dir: expected a text, or a list"),
        ("model_parameters", "working_dir", [1], "working_dir: expected a text, got .1."),
        ("model_parameters", "node_info", {"fc": 3}, "node_info: fc: expected a dict"),
        (
            "model_parameters",
            "node_info",
            {"fc": {"ON": "CPU", "InputType": "int16"}},
            "a node on the CPU computes in float; leave InputType out",
        ),
        ("input_parameters", "input_shape", "1x3;4", "2 input_shape for 1 input_name"),
        ("input_parameters", "input_shape", "1,3", "must read like 1x3x224x224"),
        ("calibration_parameters", "cal_data_dir", "", "cal_data_dir is missing"),
    ],
)
def test_what_is_wrong_is_named(
    tmp_path: Path, group: str, key: str, value: Any, message: str
) -> None:
    content = whole(tmp_path)
    content[group][key] = value
    with pytest.raises(ArgumentError, match=message):
        read(tmp_path, content)


@pytest.mark.parametrize(
    ("group", "key", "value"),
    [
        ("input_parameters", "mean_value", "103 116 123"),
        ("model_parameters", "caffe_model", "a.caffemodel"),
        ("model_parameters", "remove_node_type", "Dequantize"),
        ("calibration_parameters", "calibration_type", "histogram"),
    ],
)
def test_what_has_no_form_here_is_said(tmp_path: Path, group: str, key: str, value: str) -> None:
    content = whole(tmp_path)
    content[group][key] = value
    with pytest.raises(NotImplementedError, match=f"{group}: {key}"):
        read(tmp_path, content)

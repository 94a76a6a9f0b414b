"""``qtune onnx``: build and check on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from ..onnx_debug.build.models import classifier, items
from .conftest import Run

pytest.importorskip("onnxruntime")


@pytest.fixture
def model(folder: Path) -> Path:
    onnx.save(classifier(batch="n"), folder / "net.onnx")
    (folder / "data/x").mkdir(parents=True)
    for index, array in enumerate(items(1, 3, 8, 8)):
        np.save(folder / f"data/x/{index}.npy", array)
    return folder / "net.onnx"


def test_build_writes_its_files_and_keeps_a_limit(run: Run, folder: Path, model: Path) -> None:
    config = {"model_config": {"activation": {"calibration_type": "max"}}}
    (folder / "max.json").write_text(json.dumps(config))
    words = ("onnx", "build", "net.onnx", "--data", "data", "--march", "nash-m")
    words = (*words, "--quant-config", "max.json", "--out", "out/small", "--json")
    done = run(*words, "--min-cosine", "0.99")
    assert done.status == 0
    assert done.json["march"] == "nash-m"
    assert done.json["result"]["calibration"]["method"] == "max"
    assert "out/small_calibrated_model.onnx" in done.json["files"]
    assert all((folder / name).exists() for name in done.json["files"])
    assert run(*words, "--min-cosine", "0.999999").status == 1


def test_check_says_what_runs_and_writes_nothing(run: Run, folder: Path, model: Path) -> None:
    before = sorted(folder.rglob("*"))
    done = run("onnx", "check", "net.onnx", "--march", "nash-e", "--input-shape", "x=2x3x8x8")
    assert done.status == 0
    assert "march: nash-e" in done.out
    assert sorted(folder.rglob("*")) == before


def test_the_toolchains_file_builds_and_options_win(run: Run, folder: Path, model: Path) -> None:
    yaml = pytest.importorskip("yaml")
    content = {
        "model_parameters": {"onnx_model": "net.onnx", "march": "nash-e", "working_dir": "wd"},
        "input_parameters": {"input_name": "x", "input_layout_rt": "NHWC"},
        "calibration_parameters": {"cal_data_dir": "data/x", "calibration_type": "max"},
    }
    (folder / "c.yaml").write_text(yaml.safe_dump(content))
    done = run("onnx", "build", "--config", "c.yaml", "--march", "nash-p", "--json")
    assert done.status == 0
    assert done.json["march"] == "nash-p"
    assert done.json["result"]["ignored"] == ["input_parameters.input_layout_rt"]
    assert (folder / "wd/model_quantized_model.bc").is_file()


def test_wrong_input_is_one_line(run: Run, folder: Path, model: Path) -> None:
    done = run("onnx", "build", "net.onnx")
    assert done.status == 2
    assert "give the folder of the calibration data" in done.err
    np.save(folder / "data/x/0.npy", np.zeros((1, 3, 8, 7), np.float32))
    done = run("onnx", "build", "net.onnx", "--data", "data")
    assert done.status == 2
    assert "data/x/0.npy has the shape [1, 3, 8, 7], the input 'x' takes [any, 3, 8, 8]" in done.err
    done = run("onnx", "build", "absent.onnx", "--data", "data")
    assert done.status == 2
    assert "MODEL: there is no file absent.onnx" in done.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("check", "net.onnx", "--data", "data"), "--data: check takes random data and writes not"),
        (("check", "net.onnx", "--out", "a"), "--out: check takes random data"),
        (("check", "net.onnx", "--dump-calibration-data"), "--dump-calibration-data: check takes"),
        (("build", ".", "--data", "data"), "MODEL: there is no file ."),
        (("build", "net.onnx"), "--data: give the folder of the calibration data"),
        (("build", "net.onnx", "--data", "data", "--out", ""), "name_prefix: expected a folder"),
        (("build", "net.onnx", "--data", "data", "--out", "net.onnx/a"), "net.onnx is a file"),
        (("build", "--config", "gone.yaml"), "--config: gone.yaml can't be read: No such file"),
        (("build",), "MODEL: give the path of the ONNX file, or --config"),
    ],
)
def test_options_that_do_not_fit_are_one_line(
    run: Run, folder: Path, model: Path, words: tuple[str, ...], message: str
) -> None:
    before = sorted(folder.rglob("*"))
    done = run("onnx", *words)
    assert done.status == 2
    assert message in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert sorted(folder.rglob("*")) == before

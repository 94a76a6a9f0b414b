"""Commands on ONNX files: compare, sensitivity, init; what the others say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from qtune.onnx_debug.sensitivity import get_sensitivity_of_nodes
from qtune.testing import OnnxStages

from ..onnx_debug import nets as debug_nets
from ..testing import onnx_nets
from .conftest import Run


@pytest.fixture
def files(folder: Path) -> Path:
    """model.onnx, calibrated.onnx, quantized.bc and their data."""
    onnx_nets.write_project(folder)
    stages = OnnxStages(folder / "model.onnx", onnx_nets.images(), march="nash-e")
    onnx.save(stages.calibrated.proto, folder / "calibrated.onnx")
    stages.quantized_bc.save(folder / "quantized.bc")
    return folder


def test_float_and_calibrated_files_are_compared_by_node(files: Path, run: Run) -> None:
    words = ("--data", "holdout", "--min", "COSINE=0.99", "--json")
    done = run("compare", "model.onnx", "calibrated.onnx", *words)
    assert done.status == 0, done.err
    names = [row["name"] for row in done.json["result"]["operators"]]
    assert {"act", "head"} <= set(names)
    assert all(row["COSINE"] > 0.99 for row in done.json["result"]["operators"])


def test_a_calibrated_file_is_compared_with_the_module(files: Path, run: Run) -> None:
    done = run("compare", "calibrated.onnx", "quantized.bc", "--data", "holdout", "--json")
    assert done.status == 0, done.err
    assert done.json["march"] == "nash-e"
    steps = {row["name"]: row["max_qscale_diff"] for row in done.json["result"]["operators"]}
    assert steps["act"] <= 1


def test_calibration_nodes_are_ranked_as_the_debugger_does(folder: Path, run: Run) -> None:
    onnx.save(debug_nets.residual(), folder / "net.onnx")
    (folder / "data" / "x").mkdir(parents=True)
    for index, item in enumerate(debug_nets.data()):
        np.save(folder / "data" / "x" / f"{index}.npy", item)
    done = run("sensitivity", "net.onnx", "--data", "data", "--min", "0.9999", "--json")
    assert done.status == 1
    nodes = done.json["result"]["nodes"]
    expected: dict[str, float] = {}
    for kind in ("weight", "activation"):
        found = get_sensitivity_of_nodes(
            debug_nets.residual(),
            calibrated_data=debug_nets.data(),
            node_type=kind,
            data_num=None,
        )
        expected |= {name: values["cosine-similarity"] for name, values in found.items()}
    assert {row["node"]: row["cosine-similarity"] for row in nodes} == expected
    values = [row["cosine-similarity"] for row in nodes]
    assert values == sorted(values)  # the worst first
    (gate,) = done.json["gates"]
    assert (gate["node"], gate["value"]) == (nodes[0]["node"], values[0])
    assert [Path(path).name for path in done.json["files"]][:2] == [
        "sensitivity_of_weight.log",
        "sensitivity_of_activation.log",
    ]


def test_a_first_gate_file_of_an_onnx_file_holds(files: Path, run: Run) -> None:
    done = run("init", "model.onnx", "--data", "calibration_data", "--march", "nash-e")
    assert done.status == 0, done.err
    text = (files / "model.qtune.toml").read_text()
    assert 'onnx = "model.onnx"\nmarch = "nash-e"\ncalibration = "calibration_data"\n' in text
    assert "xfail" not in text
    assert "left out" not in text
    assert run("gate", "model.qtune.toml").status == 0


def test_a_calibrated_file_needs_its_data_as_inputs_only(files: Path, run: Run) -> None:
    done = run("init", "calibrated.onnx", "--data", "holdout", "--march", "nash-e")
    assert done.status == 0, done.err
    text = (files / "calibrated.qtune.toml").read_text()
    assert 'inputs = "holdout"' in text
    assert "calibration =" not in text


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("sensitivity model.onnx --data holdout", "MODEL: model.onnx is a float model, in which"),
        ("sensitivity gone.onnx --data holdout", "MODEL: there is no file gone.onnx"),
        ("sensitivity calibrated.onnx --data holdout --int16 act", "--int16: a calibrated ONNX f"),
        ("sensitivity calibrated.onnx --data holdout --metric cos", "--metric: expected one of c"),
        (
            "sensitivity calibrated.onnx --data holdout --max 1",
            "--max 1: a larger COSINE is better, so a limit on it is --min",
        ),
        ("sensitivity calibrated.onnx --data .", "--data: . holds no folder of .npy files"),
        ("compare model.onnx --data holdout", "MODEL and OTHER: expected two .bc files"),
        ("compare gone.onnx quantized.bc --data holdout", "MODEL: there is no file gone.onnx"),
        (
            "check model.onnx --data holdout --march nash-e",
            "MODEL: model.onnx is an ONNX file",
        ),
        (
            "init model.onnx --data holdout --march nash-e --qconfig nets:make",
            "--qconfig: it is for models in torch",
        ),
    ],
)
def test_what_does_not_fit_is_named(files: Path, run: Run, words: str, text: str) -> None:
    done = run(*words.split())
    assert done.status == 2
    assert text in done.err

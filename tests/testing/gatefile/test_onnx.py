"""Gate files of ONNX models: what they read, every kind of check, errors at their line."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from qtune.testing.gatefile import GateFileError, read
from qtune.testing.gatefile.kinds import kinds
from qtune.testing.gatefile.run import GateRun, Settings, gate_run
from qtune.testing.result import AssertionResult

from .. import onnx_nets

MODEL = """\
[model]
onnx = "model.onnx"
march = "nash-e"
calibration = "calibration_data/"
inputs = "holdout"
"""
EVALUATE = """\
import numpy as np

def first(model):
    images = np.concatenate([np.load(f"holdout/image/{i}.npy") for i in range(2)])
    return float((model(images) > 0).mean())
"""
ALL = """
quant_config = {model_config = {activation = {calibration_type = "max"}}}
evaluate = "task.py:first"
[[check]]
kind = "accuracy_drop_below"
max_drop = 5
[[check]]
kind = "baseline"
metrics = ["cosine", "first"]
[[check]]
kind = "bit_exact"
against = "reference"
[[check]]
kind = "consistency"
min_cosine = 0.99
[[check]]
kind = "latency_below"
stage = "hbm"
max_us = 100
[[check]]
kind = "no_saturation"
max_share = 0.1
[[check]]
kind = "no_shared_ops"
[[check]]
kind = "no_unfused"
stage = "optimized"
[[check]]
kind = "on_bpu"
stage = "calibrated"
[[check]]
kind = "qconfig"
dtypes = {"conv input" = "qint8"}
[[check]]
kind = "scale_in"
high = 1
[[check]]
kind = "sensitivity_below"
metric = "cosine-similarity"
limit = 0.99
"""
STEPS = "[[check]]\nkind = 'consistency'\nmax_qscale_diff = 1\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    onnx_nets.write_project(tmp_path)
    (tmp_path / "task.py").write_text(EVALUATE)
    return tmp_path


def start(folder: Path, text: str) -> GateRun:
    path = folder / "net.qtune.toml"
    path.write_text(text)
    return gate_run(read(path, path.name), folder, Settings())


def results(run: GateRun) -> dict[str, AssertionResult]:
    with run.active():
        return {check.kind: run.results(check)[0] for check in run.file.checks}


def test_every_kind_of_check_has_its_stage(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)  # of the function that evaluates
    run = start(folder, MODEL + ALL)
    assert {check.kind for check in run.file.checks} == set(kinds())
    found = results(run)
    assert {name for name, result in found.items() if not result} == {"baseline"}  # none is stored
    assert {result.model for result in found.values()} == {"net"}
    labels = {check.kind: check.label for check in run.file.checks}
    assert labels["no_saturation"] == labels["scale_in"] == "calibrated"
    assert labels["sensitivity_below"] == "calibrated"
    assert labels["consistency"] == "float-quantized_bc"
    monkeypatch.undo()


def test_steps_start_from_the_fake_quant_module(folder: Path) -> None:
    run = start(folder, MODEL + STEPS)
    assert run.file.checks[0].stages == ("qat_bc", "quantized_bc")
    assert results(run)["consistency"].metrics["max_qscale_diff"] <= 1


def test_layers_are_the_operators_of_the_module(folder: Path) -> None:
    run = start(folder, MODEL + STEPS + "per_layer = true\nmin_cosine = 0.9\n")
    with run.active():
        found = run.operators(run.file.checks[0])
        assert found == {"image_quant": "", "conv": "act", "act": "", "head": ""}
        assert run.layers(run.file.checks[0]).of("act")[0].ok


def test_a_calibrated_model_needs_no_data(folder: Path) -> None:
    onnx.save(onnx_nets.chain(), folder / "chain.onnx")
    text = '[model]\nonnx = "chain.onnx"\nmarch = "nash-e"\n[[check]]\nkind = "scale_in"\n'
    assert results(start(folder, text))["scale_in"].ok


def test_a_pinned_artefact_is_the_stage(folder: Path) -> None:
    run = start(folder, MODEL + STEPS)
    with run.active():
        run.subject.stage("quantized_bc").save(folder / "net.bc")
    pinned = start(folder, f'{MODEL}artefact = "net.bc"\n{STEPS}')
    assert results(pinned)["consistency"].artefact == str(folder / "net.bc")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{MODEL}factory = 'a:b'\n{STEPS}", ":6: [model]: factory does not go with onnx"),
        (f"{MODEL}qconfig = 'a:b'\n{STEPS}", ":6: [model]: qconfig does not go with onnx"),
        (
            "[model]\nfactory = 'a:b'\nquant_config = 'c.json'\n",
            ":3: [model]: quant_config does not go with factory",
        ),
        (
            "[model]\nfactory = 'a:b'\ncalibration = 'folder'\n",
            ":3: [model]: calibration must be module:name but is",
        ),
        (f"{MODEL}input_dict = 'x'\n{STEPS}", ":6: [model]: input_dict must be a table but is"),
        (f"{MODEL}quant_config = 3\n{STEPS}", ":6: [model]: quant_config must be a path, module:"),
        (
            f"{MODEL}[[check]]\nkind = 'scale_in'\nstage = 'calib'\n",
            ":8: [[check]] 1 (scale_in): stage: there is no stage 'calib'; choose one of: "
            "calibrated, qat_bc, quantized_bc",
        ),
        (
            f"{MODEL}[[check]]\nkind = 'sensitivity_below'\nlimit = 1\nstage = 'float'\n",
            ":9: [[check]] 1 (sensitivity_below): stage: it can't look at 'float'; choose one of: "
            "calibrated",
        ),
    ],
)
def test_mistakes_name_their_line(folder: Path, text: str, expected: str) -> None:
    with pytest.raises(GateFileError) as caught:
        start(folder, text)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (('"model.onnx"', '"gone.onnx"'), ":2: [model]: onnx: there is no file gone.onnx"),
        (
            ('"model.onnx"', '"task.py"'),
            ":2: [model]: onnx: task.py: OnnxStages: model: a path m",
        ),
        (('"holdout"', '"gone"'), ":5: [model]: inputs: there is no folder gone"),
        (('"calibration_data/"', '"gone/"'), ":4: [model]: calibration: there is no folder gone/"),
        (('"calibration_data/"', '"task:gone"'), ":4: [model]: calibration: task has no 'gone'"),
        (
            ('"nash-e"', '"nash-e"\nquant_config = "gone.json"'),
            ":4: [model]: quant_config: there is no file gone.json",
        ),
        (('"calibration_data/"', '"."'), ":6: [[check]] 1 (consistency): calibration data: "),
    ],
)
def test_what_is_not_there_is_shown_at_the_line_that_names_it(
    folder: Path, change: tuple[str, str], expected: str
) -> None:
    with pytest.raises(GateFileError) as caught:
        results(start(folder, (MODEL + STEPS).replace(*change)))
    assert expected in str(caught.value)

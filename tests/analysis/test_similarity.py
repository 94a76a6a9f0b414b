"""featuremap_similarity: rows, files, suffixes, the error of one operator alone."""

from __future__ import annotations

import copy
import logging
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.ao.quantization import QuantStub

from qtune.errors import AnalysisError, ArgumentError
from qtune.quantization import FakeQuantState, convert, hbdk4, prepare, set_fake_quantize
from qtune.utils.quant_profiler import featuremap_similarity

from ..profiler.stages import Net, X, eager_net, prepared_net
from .nets import assert_same, calibrated, fingerprint

NAME, TYPE, SIMILARITY, SCALE, ATOL, STEPS, OWN = range(1, 8)


def by_name(rows: list[list[Any]]) -> dict[str, list[Any]]:
    return {row[NAME]: row for row in rows}


def test_rows_of_a_float_and_a_prepared_model(tmp_path: Path) -> None:
    net, model = prepared_net()
    rows = featuremap_similarity(net, model, X, out_dir=tmp_path)
    assert [row[0] for row in rows] == list(range(len(rows)))
    names = [row[NAME] for row in rows]
    assert names[:6] == ["_input_0_quant", "conv", "bn(I)", "relu", "shared", "shared(1)"]
    found = by_name(rows)
    assert found["conv"][TYPE] == "<class 'torch.nn.modules.conv.Conv2d'>"
    quant = found["_input_0_quant"]
    scale = float(model.get_submodule("_input_0_quant").activation_post_process.scale)
    assert quant[SCALE] == scale
    assert quant[ATOL] <= scale / 2 * (1 + 1e-5)  # rounding to the nearest; float32 product
    assert quant[STEPS] in (0, 1)
    assert quant[OWN] == quant[STEPS]  # nothing comes before it
    assert found["conv"][SCALE] is None  # a member of a group has no scale of its own
    assert found["conv"][STEPS] is None
    assert all(0.9 < row[SIMILARITY] <= 1 + 1e-12 for row in rows)


def test_own_errors_do_not_accumulate(tmp_path: Path) -> None:
    _, model = prepared_net()
    rows = by_name(featuremap_similarity(model, convert(model), X, "SQNR", out_dir=tmp_path))
    assert rows["_input_0_quant"][SIMILARITY] == math.inf
    assert rows["conv(I)"][2:] == ["<class 'qtune.nn.qat.Conv2d'>", *[None] * 5]
    assert rows["bn(I vs I)"][SIMILARITY] is None
    assert rows["shared"][STEPS] >= rows["shared"][OWN]
    for name in ("shared(1)", "_generated_split_0", "_generated_split_0:1", "_generated_cat_0"):
        assert rows[name][OWN] <= 1, name


def test_a_model_without_operators_has_a_row_for_its_functions(tmp_path: Path) -> None:
    class Cast(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.to(torch.int32)

    net = Cast().eval()
    (row,) = featuremap_similarity(net, prepare(net, X), X, out_dir=tmp_path)
    assert row[NAME] == "_generated_to_0"
    assert row[SIMILARITY:] == [None] * 5  # integers have no distance


def test_steps_are_the_nearest_whole_number_of_scales(tmp_path: Path) -> None:
    net, model = prepared_net()
    rows = [
        r for r in featuremap_similarity(net, model, X, out_dir=tmp_path) if r[STEPS] is not None
    ]
    exact = [row[ATOL] / row[SCALE] for row in rows]
    assert [row[STEPS] for row in rows] == [math.floor(steps + 0.5) for steps in exact]
    assert any(steps % 1 >= 0.5 for steps in exact)  # one that a floor would miss
    assert any(0 < steps % 1 < 0.5 for steps in exact)  # and one that a ceiling would


def test_a_fault_of_one_operator_stands_at_that_operator_alone(tmp_path: Path) -> None:
    _, model = prepared_net()
    broken = copy.deepcopy(model)
    with torch.no_grad():
        broken.shared.bias.add_(0.5)
    rows = by_name(featuremap_similarity(model, broken, X, out_dir=tmp_path))
    wrong = [name for name, row in rows.items() if row[OWN]]
    assert wrong == ["shared", "shared(1)"]
    assert rows["_generated_cat_0"][STEPS] > 0  # the difference is handed on
    ordered = (tmp_path / "ordered_op_error_similarity.txt").read_text().splitlines()
    assert "| shared" in ordered[10]


def test_files_have_the_documented_form(tmp_path: Path) -> None:
    net, model = prepared_net()
    featuremap_similarity(net, model, X, out_dir=tmp_path)
    text = (tmp_path / "similarity.txt").read_text().splitlines()
    assert text[:6] == [
        "-" * 63,
        "Note:",
        "* Suffix '(I)' means this layer is Identity in one model",
        "* Suffix '(I vs I)' means this layer is Identity in both models",
        "* Suffix '(i)'(i >= 1) means this op is shared i times",
        "-" * 63,
    ]
    heads = [[cell.strip() for cell in line.strip("|").split("|")] for line in text[7:9]]
    assert heads[0] == [
        *("Index", "Module Name", "Module Type", "Similarity", "qscale"),
        *("Acc Error", "Acc Error", "Op Error with Same"),
    ]
    assert heads[1][5:] == ["(float atol)", "(N out_qscale)", "Input (N out_qscale)"]
    page = (tmp_path / "similarity.html").read_text()
    assert "<svg" in page
    assert "shared(1)" in page


def test_rows_beyond_the_threshold_go_to_the_screen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    net, model = prepared_net()
    capsys.readouterr()
    featuremap_similarity(net, model, X, threshold=0.0, out_dir=tmp_path)
    assert capsys.readouterr().out == ""
    featuremap_similarity(net, model, X, threshold=1.1, out_dir=tmp_path)
    assert "shared(1)" in capsys.readouterr().out
    featuremap_similarity(net, model, X, "L1", threshold=1e-9, out_dir=tmp_path)
    assert "shared(1)" in capsys.readouterr().out


class Zero(nn.Module):
    """A relu that lets nothing through."""

    def __init__(self) -> None:
        super().__init__()
        self.relu = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.relu(-x.abs())


def test_the_cosine_of_an_all_zero_result_is_zero(tmp_path: Path) -> None:
    net = Zero().eval()
    rows = by_name(featuremap_similarity(net, calibrated(net, X), X, out_dir=tmp_path))
    assert rows["relu"][SIMILARITY] == 0.0
    assert rows["relu"][ATOL] == 0.0


@pytest.mark.parametrize("pair", ["float and converted", "prepared and HBIR", "eager"])
def test_every_stage_can_be_compared(pair: str, tmp_path: Path) -> None:
    if pair == "eager":
        model = eager_net()
        rows = featuremap_similarity(model, convert(copy.deepcopy(model)), X, out_dir=tmp_path)
        assert [row[NAME] for row in rows] == ["quant", "relu", "side", "add", "dequant"]
    else:
        net, model = prepared_net()
        is_float = pair.startswith("float")
        first = net if is_float else model
        second = convert(model) if is_float else hbdk4.export(model, (X,))
        rows = featuremap_similarity(first, second, X, out_dir=tmp_path)
        assert {"relu", "shared", "shared(1)", "head"} <= {row[NAME] for row in rows}
    assert all(row[SIMILARITY] is None or row[SIMILARITY] > 0.99 for row in rows)
    # a float value goes on its producer's int8 grid first: many of the softmax's int16 steps
    outside = [row for row in rows if "softmax" not in row[NAME]]
    assert all(row[OWN] is None or row[OWN] <= 2 for row in outside)
    assert {row[NAME] for row in rows if row[OWN] is not None} >= {"relu"}


def test_without_a_module_of_the_whole_there_are_no_errors_with_the_same_input(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = eager_net()
    codes = convert(copy.deepcopy(model))
    codes.dequant = nn.Identity()
    with caplog.at_level(logging.INFO, "qtune"):
        rows = by_name(featuremap_similarity(model, codes, X, out_dir=tmp_path))
    assert rows["add"][STEPS] is not None
    assert rows["add"][OWN] is None
    assert "no errors with the same input: the model returns a QTensor" in caplog.text


class Named(nn.Module):
    """Takes its second tensor by name only."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, *, other: torch.Tensor) -> torch.Tensor:
        return torch.add(input=self.fc(x), other=other)


def test_keyword_tensors_are_seen(tmp_path: Path) -> None:
    from qtune.capture.inputs import Inputs

    inputs = Inputs(torch.randn(2, 4), other=torch.randn(2, 4))
    net = Named().eval()
    rows = by_name(featuremap_similarity(net, calibrated(net, inputs), inputs, out_dir=tmp_path))
    assert rows["_generated_add_0"][SIMILARITY] > 0.99


def test_models_are_left_as_they_were(tmp_path: Path) -> None:
    net, model = prepared_net()
    model.train()
    before = [(fingerprint(item), item) for item in (net, model)]
    featuremap_similarity(net, model, X, devices=("cpu", torch.device("cpu")), out_dir=tmp_path)

    def fail(a: Any, b: Any) -> float:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        featuremap_similarity(net, model, X, fail, devices="cpu", out_dir=tmp_path)
    for state, item in before:
        assert_same(state, item)


def test_a_model_converted_in_place_is_not_compared_with_itself(tmp_path: Path) -> None:
    _, model = prepared_net()
    converted = convert(model, inplace=True)
    for pair in ((model, converted), (converted, converted)):
        with pytest.raises(AnalysisError, match="both models hold the same operators"):
            featuremap_similarity(*pair, X, out_dir=tmp_path)


def test_other_pairs_are_refused(tmp_path: Path) -> None:
    net, model = prepared_net()
    other = calibrated(nn.Sequential(QuantStub(), nn.ReLU()).eval(), X)
    with pytest.raises(AnalysisError, match="no operator in common"):
        featuremap_similarity(other, model, X, out_dir=tmp_path)
    with pytest.raises(AnalysisError, match="one device or a pair, got 3"):
        featuremap_similarity(net, model, X, devices=["cpu"] * 3, out_dir=tmp_path)
    with pytest.raises(ArgumentError, match="featuremap_similarity: this machine has no device"):
        featuremap_similarity(net, model, X, devices=("cpu", "cuda:99"), out_dir=tmp_path)
    calibrating = prepare(Net().eval(), X)
    set_fake_quantize(calibrating.eval(), FakeQuantState.CALIBRATION)
    with pytest.raises(AnalysisError, match="in the state CALIBRATION"):
        featuremap_similarity(net, calibrating, X, out_dir=tmp_path)

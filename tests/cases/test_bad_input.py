"""What bad input gets: one error that says where, what came, what was expected, what to do."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import qtune
from qtune.errors import (
    AnalysisError,
    ArgumentError,
    CaptureError,
    ConvertError,
    ExportError,
    GuardError,
    MarchError,
    NonFiniteError,
    NotCalibratedError,
    PrepareError,
    QtuneError,
    RunError,
)
from qtune.profiler import QuantAnalysis
from qtune.quantization import (
    FakeQuantState,
    auto_calibrate,
    load_calib_state_dict,
    prepare,
    set_fake_quantize,
)
from qtune.quantization.hbdk4 import convert, export, pre_export
from qtune.utils.check_model import check_qat_model

from .steps import calib, calibrated, prep, quantized_module, run, scales

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.act = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()
        self.head = nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.act(self.bn(self.conv(x))))


def refused(step: Callable[[], object], error: type[QtuneError], *words: str) -> str:
    """``step`` raises exactly this class, once, and the message holds all ``words``."""
    with pytest.raises(error) as caught:
        step()
    assert type(caught.value) is error
    text = str(caught.value)
    for word in words:
        assert word in text, text
    return text


def test_no_march(monkeypatch: pytest.MonkeyPatch) -> None:
    x = X
    p = calibrated(Net(), x)
    qat = export(p, x)
    monkeypatch.setattr("qtune.march._current", None)
    steps = [lambda: qtune.get_march(), lambda: prepare(Net().eval(), x), lambda: convert(qat)]
    for step in steps:
        refused(step, MarchError, "no march is set", "qtune.set_march('nash-e')", "before prepare")
    assert convert(qat, "nash-e").march == "nash-e"


def test_an_unknown_march_lists_the_known_ones() -> None:
    refused(lambda: qtune.set_march("nash-x"), MarchError, "'nash-x'", "nash-e", "bayes")
    refused(lambda: convert(export(calibrated(Net(), X), X), "x3"), MarchError, "'x3'", "nash-e")


def test_prepare_without_example_inputs() -> None:
    for arguments in ((), (None,)):
        refused(
            lambda a=arguments: prepare(Net().eval(), *a),
            PrepareError,
            "prepare",
            "needs example_inputs",
            "qtune.Inputs",
        )
    refused(lambda: prepare(Net(), ()), PrepareError, "they are empty", "pass the tensors")
    refused(lambda: prepare(Net(), []), PrepareError, "the list of example inputs is empty")
    refused(lambda: prepare("net", X), PrepareError, "expected a torch.nn.Module", "'net'")
    refused(lambda: prepare(prep(Net(), X), X), PrepareError, "prepared already", "float model")


@pytest.mark.parametrize(
    ("layer", "x", "words"),
    [
        (nn.Conv2d(3, 4, 40), torch.randn(1, 3, 48, 48), ["conv2d", "40", "31"]),
        (nn.Conv2d(3, 4, 3, stride=2, dilation=2), X, ["conv2d", "stride 2", "dilation 2"]),
        (nn.ConvTranspose2d(3, 4, 3, dilation=2), X, ["conv_transpose2d", "dilation", "1"]),
        (nn.ConvTranspose2d(3, 4, 1), X, ["conv_transpose2d", "1 x 1", "use a convolution"]),
    ],
)
def test_an_operator_that_the_march_cannot_run(
    layer: nn.Module, x: Tensor, words: list[str]
) -> None:
    model = nn.Sequential()
    model.add_module("stem", layer)
    text = refused(
        lambda: prepare(model.eval(), x), MarchError, "march nash-e can't run", "stem", *words
    )
    assert "choose another march" in text
    assert "module.qconfig = None" in text


def test_all_operators_that_the_march_cannot_run_are_listed_at_once() -> None:
    model = nn.Sequential(nn.ConvTranspose2d(3, 4, 1), nn.ReLU(), nn.ConvTranspose2d(4, 4, 1))
    refused(lambda: prepare(model.eval(), X), MarchError, "0 (conv_transpose2d)", "2 (conv_trans")


def test_convert_for_a_march_that_cannot_run_an_operator() -> None:
    model = nn.Sequential(nn.ConvTranspose2d(3, 4, 3))
    qat = export(calibrated(model, X), X)
    text = refused(lambda: convert(qat, "bernoulli2"), ConvertError, "bernoulli2", "stride")
    assert re.search(r"- 0 \(\w+\.py:\d+\): ", text), text


def test_an_operator_that_nobody_knows_stays_float_and_is_listed() -> None:
    class Spectrum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return torch.fft.fft(self.conv(x)).real

    p = prep(Spectrum(), X)
    reasons = {item.name: item.reason for item in p.float_ops}
    assert "torch.fft.fft" in reasons["_generated_fft_0"]
    assert "torch.fft.fft" in str(check_qat_model(p, X))


NUMPY, INT = X.numpy(), 3
PARTS = {"numpy": (NUMPY, "numpy.ndarray", "torch.from_numpy"), "int": (INT, "int 3", "tensors")}


@pytest.mark.parametrize("kind", PARTS)
def test_no_tensor_where_examples_are_needed(kind: str, tmp_path: Path) -> None:
    value, what, remedy = PARTS[kind]
    net = Net().eval()
    p = calibrated(net, X)
    analysis = QuantAnalysis(net, p, "fake_quant", out_dir=str(tmp_path))
    refused(lambda: prepare(net, value), PrepareError, "prepare: ", what, remedy)
    refused(lambda: prepare(net, qtune.Inputs(x=value)), PrepareError, "input x is", what, remedy)
    refused(lambda: export(p, value), ExportError, "export: ", what, remedy)
    refused(lambda: auto_calibrate(p, [value]), PrepareError, "auto_calibrate: ", what, remedy)
    calib(p, [X])
    refused(lambda: check_qat_model(p, value), ArgumentError, "check_qat_model: ", what, remedy)
    refused(lambda: analysis.set_bad_case(value), AnalysisError, "set_bad_case: ", what, remedy)
    refused(
        lambda: analysis.auto_find_bad_case([X, value]),
        AnalysisError,
        "auto_find_bad_case: ",
        what,
        remedy,
    )


def test_an_array_deep_inside_the_examples_is_found() -> None:
    text = refused(lambda: prepare(Net(), ({"a": [X, NUMPY]},)), PrepareError, "torch.from_numpy")
    assert "0-a-1" in text


@pytest.mark.parametrize("state", [FakeQuantState.CALIBRATION, FakeQuantState.VALIDATION])
def test_no_tensor_for_a_prepared_model(state: FakeQuantState) -> None:
    p = calibrated(Net(), X)
    set_fake_quantize(p, state)
    before = scales(p)
    for value, what in ((NUMPY, "numpy.ndarray"), (INT, "builtins.int"), (None, "structure")):
        refused(lambda v=value: run(p, v), GuardError, what, "Pass")
    integers = torch.ones(2, 3, 8, 8, dtype=torch.int64)
    refused(lambda: run(p, integers), ArgumentError, "_input_0_quant", "floating", "torch.int64")
    assert all(torch.equal(before[key], scale) for key, scale in scales(p).items())


@pytest.mark.parametrize("stage", ["qat", "quantized"])
def test_wrong_arguments_of_an_exported_module(stage: str) -> None:
    p = calibrated(Net(), X)
    function = (export(p, X) if stage == "qat" else quantized_module(p, X))[0]
    expected = "_input_0: float32[2, 3, 8, 8]"
    for value in (INT, 3.5, "x", [1.0], None):
        refused(lambda v=value: function(v), RunError, "forward", expected, repr(value), "Call")
    refused(lambda: function(), RunError, "forward", expected, "got tuple with []")
    refused(lambda: function(X, X), RunError, "forward", expected)
    refused(lambda: function({"y": X}), RunError, expected)
    text = refused(lambda: function(X.long()), RunError, "_input_0", "float32", "int64")
    assert "convert it before the call" in text
    wide = np.zeros((2, 3, 8, 8))
    refused(lambda: function(wide), RunError, "_input_0", "float32", "float64")
    refused(lambda: function(X.half()), RunError, "_input_0", "float32", "float16")
    refused(lambda: function(X[..., :4]), RunError, "_input_0", "(2, 3, 8, 8)", "(2, 3, 8, 4)")
    refused(lambda: function(X[0]), RunError, "_input_0", "(2, 3, 8, 8)", "(3, 8, 8)")
    assert function(NUMPY).shape == (2, 2, 6, 6)  # a float32 array is as good as a tensor


def test_the_wrong_kind_of_model() -> None:
    p = calibrated(Net(), X)
    qat = export(p, X)
    refused(lambda: convert(p, "nash-e"), ArgumentError, "PreparedModel", "export first")
    refused(lambda: convert(convert(qat)), ConvertError, "export", "'quantized'")
    refused(lambda: check_qat_model(Net(), X), ArgumentError, "prepare", "Net")
    refused(lambda: export(Net(), X), ExportError, "made by prepare", "Net", "call prepare")
    refused(lambda: QuantAnalysis(Net(), X, "fake_quant"), AnalysisError, "Tensor", "torch module")


STUBS = ("_input_0_quant", "conv weight", "act", "head weight")


def test_a_fake_quantize_without_data() -> None:
    p = prep(Net(), X)
    set_fake_quantize(p, FakeQuantState.VALIDATION)
    for step in (lambda: run(p, X), lambda: pre_export(p), lambda: export(p, X)):
        text = refused(
            step,
            NotCalibratedError,
            "nothing is calibrated",
            "FakeQuantState.CALIBRATION",
            "through the prepared model itself",
        )
        for name in STUBS:
            assert name in text


def test_an_exported_model_cannot_be_without_scales() -> None:
    """convert never meets one: export refuses, so that no .bc file with a silent scale exists."""
    p = prep(Net(), X)
    set_fake_quantize(p.get_submodule("_input_0_quant"), FakeQuantState.CALIBRATION)
    p.get_submodule("_input_0_quant")(X)
    set_fake_quantize(p, FakeQuantState.VALIDATION)
    text = refused(lambda: convert(export(p, X)), NotCalibratedError, *STUBS[1:])
    assert STUBS[0] not in text


@pytest.mark.parametrize("state", [FakeQuantState.CALIBRATION, FakeQuantState.QAT])
def test_nan_in_calibration_data_names_where_it_appears(state: FakeQuantState) -> None:
    x = X.clone()
    x[1, 2, 3, 4] = math.nan
    p = prepare(Net().eval(), X)
    set_fake_quantize(p, state)
    p.train(state is FakeQuantState.QAT)
    refused(lambda: run(p, x), NonFiniteError, "_input_0_quant", "NaN", "Remove it")
    p = calibrated(Net(), X)
    before = scales(p)
    set_fake_quantize(p, FakeQuantState.CALIBRATION)
    refused(lambda: run(p, x), NonFiniteError, "_input_0_quant", "NaN")
    assert all(torch.equal(before[key], scale) for key, scale in scales(p).items())


def test_nan_made_inside_the_model_names_the_operator() -> None:
    class Root(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.sqrt(x)

    p = prep(Root(), X.abs())
    set_fake_quantize(p, FakeQuantState.CALIBRATION)
    refused(lambda: run(p, X), NonFiniteError, "_generated_sqrt_0", "operator that makes it")


def test_nan_for_the_integer_model() -> None:
    x = X.clone()
    x[0, 0, 0, 0] = math.nan
    module = quantized_module(calibrated(Net(), X), X)
    text = refused(lambda: module[0](x), NonFiniteError, "_input_0_quant", "NaN has no code")
    assert "Remove the NaN" in text


def test_the_state_of_another_model() -> None:
    p = calibrated(Net(), X)
    other = prep(nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU()), X)
    for step in (
        lambda: other.load_state_dict(p.state_dict()),
        lambda: load_calib_state_dict(other, p.state_dict()),
        lambda: p.load_state_dict(Net().state_dict()),
    ):
        with pytest.raises(RuntimeError) as caught:
            step()
        text = str(caught.value)
        assert "conv.weight" in text
        assert "prepared from the same float model" in text
        assert "load float weights into the float model, before prepare" in text


def test_a_model_that_fails_on_its_example_says_so() -> None:
    text = refused(
        lambda: prepare(Net().eval(), torch.randn(2, 4, 8, 8)),
        CaptureError,
        "Net",
        "to have 3 channels, but got 4",
        "example inputs",
        "Check that the float model runs on them",
    )
    assert "Traceback" not in text

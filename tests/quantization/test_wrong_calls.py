"""Calls with the wrong thing in the wrong place: what came, what was expected, what to do."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from qtune.errors import ArgumentError, PrepareError, QconfigError, RunError
from qtune.march import march
from qtune.quantization import (
    DeQuantStub,
    QuantStub,
    auto_calibrate,
    convert,
    explain,
    fuse_modules,
    load_calib_state_dict,
    load_observer_params,
    prepare,
    prepare_qat,
)
from qtune.quantization.hbdk4 import pre_export
from qtune.quantization.qconfig_setter import ConvDtypeTemplate, ModuleNameTemplate

X = torch.linspace(-1, 1, 32).reshape(2, 1, 4, 4)


@pytest.fixture(autouse=True, scope="module")
def _march() -> Any:
    with march("nash-e"):
        yield


def net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3)).eval()


def prepared() -> Any:
    return prepare(net(), X)


def calibrated() -> Any:
    return auto_calibrate(prepared(), [X])


WRONG: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: pre_export(calibrated(), X), ArgumentError, "inplace is True or False, got Tensor"),  # type: ignore[arg-type]
    (lambda: prepare(X, net()), PrepareError, r"tensor of shape \(2, 1, 4, 4\); the call is"),  # type: ignore[arg-type]
    (lambda: prepare(nn.ReLU, X), PrepareError, "the class ReLU, not an object of it"),  # type: ignore[arg-type]
    (lambda: prepare_qat(net(), X), PrepareError, "example inputs.* go to example_inputs="),  # type: ignore[arg-type]
    (
        lambda: prepare(net(), X, [ModuleNameTemplate({"": "qint8"})]),  # type: ignore[list-item]
        QconfigError,
        "ModuleNameTemplate is a template, no setter; write QconfigSetter",
    ),
    (
        lambda: prepare(net(), X, ConvDtypeTemplate()),  # type: ignore[arg-type]
        QconfigError,
        "ConvDtypeTemplate is a template, no setter",
    ),
    (lambda: auto_calibrate(prepared(), X), PrepareError, r"got one tensor of .* pass \[tensor\]"),
    (
        lambda: load_calib_state_dict(prepared(), calibrated()),
        ArgumentError,
        r"expected the state .* calib.state_dict\(\).* got PreparedModel",
    ),
    (
        lambda: load_calib_state_dict(prepared(), "calib.pt"),  # type: ignore[arg-type]
        ArgumentError,
        r"torch.load\(path\), but got str",
    ),
    (
        lambda: load_observer_params(calibrated().state_dict(), prepared()),
        ArgumentError,
        "expected two models.* got OrderedDict; for a state use load_calib_state_dict",
    ),
    (
        lambda: explain(prepared()).of("0", "wieght"),
        ArgumentError,
        "nothing was decided about wieght of '0'; decided were: weight, output",
    ),
    (
        lambda: explain(prepared()).of("_generated_output"),
        ArgumentError,
        r"print\(explain\(model\)\) shows all names and ports",
    ),
    (
        lambda: calibrated()((X * 100).to(torch.uint8)),
        ArgumentError,
        "got torch.uint8; convert it before the call",
    ),
]


@pytest.mark.parametrize(("call", "error", "text"), WRONG)
def test_the_message_says_what_came_and_what_to_do(
    call: Callable[[], Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        call()


def stubbed(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(QuantStub(), *layers, DeQuantStub()).eval()


def test_an_eager_model_without_a_stub_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    prepare_qat(stubbed(nn.Conv2d(1, 2, 1)))
    assert not caplog.records
    prepare_qat(net())
    (record,) = caplog.records
    assert "Sequential has no QuantStub" in record.getMessage()
    assert "run on the CPU" in record.getMessage()


def test_a_fused_group_with_a_layer_left_out_is_named() -> None:
    model = stubbed(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.ReLU())
    fuse_modules(model, ["1", "3"], inplace=True)
    integers = convert(auto_calibrate(prepare_qat(model), [X]))
    with pytest.raises(RunError, match="2: got the results of 1.* before 3 ends the group"):
        integers(X)


def test_the_reason_of_an_output_that_is_not_high_precision_names_the_gemm() -> None:
    model = prepare(nn.Sequential(nn.Conv2d(1, 2, 1), nn.ReLU()).eval(), X)
    (output,) = explain(model).outputs
    assert (output.name, output.reason) == ("1", "1 is fused into 0")

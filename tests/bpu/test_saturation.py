"""Accumulators that leave int32 saturate, and each operator's count is reported (numerics 2.1)."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

from qtune import qint16
from qtune.bpu import compiler
from qtune.march import march
from qtune.quantization import (
    FakeQuantState,
    QconfigSetter,
    get_qconfig,
    prepare,
    set_fake_quantize,
)
from qtune.quantization.hbdk4 import export
from qtune.quantization.qconfig_setter import ConvDtypeTemplate, ModuleNameTemplate

FEATURES = 1024  # 1024 products of 32767 * 127 leave int32


@pytest.mark.parametrize("mode", ["fast", "reference"])
def test_saturated_accumulators_are_counted_by_operator(
    mode: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QTUNE_RUN_DIR", "")
    model = nn.Linear(FEATURES, 2, bias=False).eval()
    model.weight.data[0], model.weight.data[1] = 1.0, 0.001
    model.weight.data[1, 0] = 1.0
    x = torch.ones(3, FEATURES)
    setter = QconfigSetter(
        get_qconfig(), [ModuleNameTemplate({"": qint16}), ConvDtypeTemplate(input_dtype=qint16)]
    )
    with march("nash-e"):
        calib = prepare(model, x, setter)
        set_fake_quantize(calib.eval(), FakeQuantState.CALIBRATION)
        calib(x)
        set_fake_quantize(calib, FakeQuantState.VALIDATION)
        function = compiler.convert(export(calib, x), "nash-e")[0]
    name = function.inputs[0].name
    with caplog.at_level(logging.WARNING, logger="qtune.bpu"):
        (result,) = function.run({name: x}, mode=mode).values()
    (operator,) = function.saturation
    assert function.saturation[operator] == 3  # the first feature of each of the three rows
    assert "3 accumulator elements left int32" in caplog.text
    assert (result[:, 0] < 1024 * 0.6).all()  # clamped at 2**31 - 1, not wrapped to a negative
    assert (result[:, 0] > 0).all()

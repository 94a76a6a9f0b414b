"""The march check after convert's walk."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from qtune.bpu import compiler
from qtune.march import march
from qtune.quantization import FakeQuantState, prepare, set_fake_quantize
from qtune.quantization.hbdk4 import export


class ResidualHead(nn.Module):
    """Ends in linear + add, which leave the model in high precision as one operator."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return self.last(torch.relu(y)) + y


def test_an_add_fused_into_the_last_gemm_may_leave_in_int32(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("QTUNE_RUN_DIR", "")
    torch.manual_seed(0)
    model, x = ResidualHead().eval(), torch.randn(4, 8)
    with march("nash-e"):
        calib = prepare(model, x)
        set_fake_quantize(calib.eval(), FakeQuantState.CALIBRATION)
        calib(x)
        set_fake_quantize(calib, FakeQuantState.VALIDATION)
        qat = export(calib, x)
        integer = compiler.convert(qat, "nash-e")
    assert "QLinearAddAcc" in [node.op_type for node in integer.model.graph]
    # the accumulator's grid is about 1e-5 here; qat.bc adds in float32
    assert torch.allclose(integer[0](x), qat[0](x), rtol=0, atol=1e-4)


def test_a_batch_norm_folded_into_the_last_gemm_may_leave_in_int32(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("QTUNE_RUN_DIR", "")
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval(), torch.randn(2, 3, 6, 6)
    with march("nash-e"):
        calib = prepare(model, x)
        set_fake_quantize(calib.eval(), FakeQuantState.CALIBRATION)
        calib(x)
        set_fake_quantize(calib, FakeQuantState.VALIDATION)
        qat = export(calib, x)
        integer = compiler.convert(qat, "nash-e")
    assert "QConvAcc" in [node.op_type for node in integer.model.graph]
    # the accumulator's grid is about 1e-5 here; qat.bc adds in float32
    assert torch.allclose(integer[0](x), qat[0](x), rtol=0, atol=1e-4)

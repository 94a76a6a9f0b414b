"""Operators with several results: every result is observed, and can be fed to its consumer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qtune.analysis.own_error import own_errors
from qtune.bpu import compiler
from qtune.capture.inputs import Inputs
from qtune.march import march
from qtune.profiler.observe import observe
from qtune.quantization import FakeQuantState, prepare, set_fake_quantize
from qtune.quantization.hbdk4 import export


class Gated(nn.Module):
    """Uses both halves of a chunk."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3), nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.conv(x).chunk(2, 1)
        return self.head(value * torch.sigmoid(gate))


def test_own_errors_of_a_net_that_uses_the_second_half_of_a_chunk(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("QTUNE_RUN_DIR", str(tmp_path))
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8, 8)
    with march("nash-e"):
        calib = prepare(Gated().eval(), x)
        set_fake_quantize(calib.eval(), FakeQuantState.CALIBRATION)
        calib(x)
        set_fake_quantize(calib, FakeQuantState.VALIDATION)
        qat = export(calib, x)
        integer = compiler.convert(qat, "nash-e")
    baseline = observe(qat, Inputs(x))
    torch_names = set(observe(calib, Inputs(x)).records)
    second = [name for name in baseline.records if name.endswith(":1")]
    assert len(second) == 1
    assert set(second) <= torch_names
    errors = own_errors(baseline, {qat[0].inputs[0].name: x}, integer)
    assert all(error.steps is None or error.steps <= 1 for error in errors.values())

"""Recurrent layers whose first and later states differ in dtype: parts shared by all steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qtune.bpu import compiler
from qtune.dtype import float16, qint8, qint16
from qtune.march import march
from qtune.quantization import (
    FakeQuantState,
    QconfigSetter,
    get_qconfig,
    prepare,
    set_fake_quantize,
)
from qtune.quantization.hbdk4 import export
from qtune.quantization.qconfig_setter import (
    ConvDtypeTemplate,
    MatmulDtypeTemplate,
    ModuleNameTemplate,
)
from tests.ops.whole import Whole, quiet, relative

__all__ = ["quiet"]

X = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(3))
BAR = 0.04
"""int8 inputs, int8 states and int8 weights: three steps of 1 / 127.5 in each of two feedbacks."""


class Layer(nn.Module):
    def __init__(self, rnn: nn.Module) -> None:
        super().__init__()
        self.r = rnn

    def forward(self, x: Tensor) -> Any:
        return self.r(x)[0]


def on_nash_h(rnn: Any, mapping: dict[str, Any]) -> Whole:
    model = Layer(rnn(4, 6, batch_first=True)).eval()
    rules = [ModuleNameTemplate(mapping), ConvDtypeTemplate(), MatmulDtypeTemplate()]
    with march("nash-h"), torch.no_grad():
        calib = prepare(model, (X,), QconfigSetter(get_qconfig(), rules)).eval()
        set_fake_quantize(calib, FakeQuantState.CALIBRATION)
        calib(X)
        set_fake_quantize(calib, FakeQuantState.VALIDATION)
        return Whole(model, (X,), calib, compiler.convert(export(calib, (X,)), "nash-h"))


@pytest.mark.parametrize("rnn", [nn.RNN, nn.GRU, nn.LSTM])
@pytest.mark.parametrize(
    "mapping",
    [
        {"": torch.float16, "_input_0_quant": qint8},
        {"": torch.float16, "r.h_l0": qint16},
        {"": torch.float16, "r.h_l0": qint8},
        {"": qint8, "r.h_l0": torch.float16},
    ],
)
def test_a_state_of_another_dtype_runs_at_every_step(rnn: Any, mapping: dict[str, Any]) -> None:
    net = on_nash_h(rnn, mapping)
    (value,), (fake,), (right,) = net.integer(), net.fake(), net.right()
    assert relative(value, right) < BAR
    # One code of the int8 state or of the float16 gates may fall to the other side of a tie.
    assert relative(value, fake) < 0.02


def test_the_shared_operand_has_one_quantizer_for_all_steps() -> None:
    net = on_nash_h(nn.GRU, {"": torch.float16, "_input_0_quant": qint8, "r.h_l0": float16})
    hh = net.calib.get_submodule("r.hh_l0")
    assert hh.input_fake_quants["0"].dtype == qint8
    states = net.fake()[0][:, :2].abs().max()  # the zeros, and what steps 1 and 2 give
    assert float(hh.input_fake_quants["0"].scale) == pytest.approx(float(states) / 128, rel=1e-2)
    (line,) = [
        d for d in net.calib.resolution.explanation if (d.name, d.port) == ("r.hh_l0", "input-0")
    ]
    assert line.reason == "one of the calls of this shared operator gives torch.float16"

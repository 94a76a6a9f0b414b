"""The guide's fx flow on handwritten digits: no example inputs, calibration, QAT, convert_fx."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from qtune.quantization import FakeQuantState, get_default_qconfig, set_fake_quantize
from qtune.quantization.quantize_fx import convert_fx, prepare_qat_fx

from .digits import POINT, accuracy, batches, train_qat

WEIGHTS = {"qscheme": torch.per_channel_symmetric, "ch_axis": 0}
EVERYWHERE = get_default_qconfig(weight_qkwargs=WEIGHTS)
AT_THE_END = get_default_qconfig(
    activation_fake_quant=None, activation_observer=None, weight_qkwargs=WEIGHTS
)
QCONFIG: dict[str, Any] = {"": EVERYWHERE, "module_name": {"head": AT_THE_END}}


def test_calibration_then_qat_then_convert_fx(float_net: nn.Module) -> None:
    reference = accuracy(float_net)
    calib = prepare_qat_fx(float_net, QCONFIG).to("cpu")
    set_fake_quantize(calib.eval(), FakeQuantState.CALIBRATION)
    with torch.no_grad():
        for images in batches():
            calib(images)
    set_fake_quantize(calib, FakeQuantState.VALIDATION)
    assert abs(accuracy(calib) - reference) <= POINT

    qat = prepare_qat_fx(float_net, QCONFIG)
    qat.load_state_dict(calib.state_dict())
    assert qat.head.activation_post_process is None
    train_qat(qat, epochs=1, lr=1e-4)
    assert abs(accuracy(qat) - reference) <= POINT
    assert abs(accuracy(convert_fx(qat.eval())) - reference) <= POINT

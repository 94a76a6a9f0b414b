"""A trained model of the torch side, exported as standard ONNX and built from its own grids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from qtune import march, qint8, qint16
from qtune.bpu.convert import convert
from qtune.dtype import QuantDType
from qtune.onnx_debug import BuildResult, build_model
from qtune.quantization import (
    DeQuantStub,
    FakeQuantState,
    QuantStub,
    get_qconfig,
    hbdk4,
    prepare_qat_fx,
    set_fake_quantize,
)
from qtune.utils.onnx_helper import export_to_onnx

LOAD = {"model_config": {"activation": {"calibration_type": "load"}}}


class Net(nn.Module):
    """Conv with relu, a sum with a table, a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = QuantStub(), DeQuantStub()
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 1)
        self.last = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Any:
        x = torch.relu(self.first(self.quant(x)))
        return self.dequant(self.last(x + torch.sigmoid(self.second(x))))


def calibrated(dtype: QuantDType, example: Tensor) -> Any:
    torch.manual_seed(0)
    model = prepare_qat_fx(Net(), {"": get_qconfig(in_dtype=dtype, out_dtype=dtype)})
    set_fake_quantize(model.eval(), FakeQuantState.CALIBRATION)
    with torch.no_grad():
        model(torch.randn(2, 3, 10, 10, generator=torch.Generator().manual_seed(2)))
    set_fake_quantize(model, FakeQuantState.VALIDATION)
    return model


@pytest.mark.parametrize(("dtype", "opset"), [(qint8, 11), (qint8, 13), (qint16, 11)])
def test_the_integers_are_those_of_the_torch_side(
    dtype: QuantDType, opset: int, tmp_path: Path
) -> None:
    example = torch.randn(2, 3, 10, 10, generator=torch.Generator().manual_seed(1))
    with march.march("nash-m"):
        model = calibrated(dtype, example)
        export_to_onnx(
            model, example, tmp_path / "q.onnx", operator_export_type=None, opset_version=opset
        )
        own = convert(hbdk4.export(model, (example,)), "nash-m")
    options: dict[str, Any] = {"save_model": False, "verbose": False, "return_builder": True}
    result = build_model(tmp_path / "q.onnx", "nash-m", None, LOAD, **options)
    assert isinstance(result, BuildResult)
    assert {row.on for row in result.nodes} == {"BPU"}
    names = [port.name for port in result.quantized[0].inputs]
    (got,) = result.quantized[0].feed(dict.fromkeys(names, example.numpy())).values()
    expected = own[0](example)
    wanted = (expected if isinstance(expected, Tensor) else expected[0]).numpy()
    if dtype == qint8:  # no value of the example lies on a tie, where pairs round otherwise
        np.testing.assert_array_equal(got, wanted)
    else:
        # the table in the middle and the sum behind it may each be a code off: 2 steps at the end
        step = float(model.last.activation_post_process.scale)
        assert abs(got - wanted).max() <= 2.01 * step
        assert {row.output_type for row in result.nodes} == {"--", "si16"}

"""``hybrid``: operators that only their decomposition refuses stay float, too."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune.quantization import FakeQuantState, hbdk4, prepare, set_fake_quantize


class Scaled(nn.Module):
    """a power of two tensors, between operators that can be quantized"""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.last = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.conv(x))
        y = torch.pow(y + 1, torch.sigmoid(y))
        return torch.softmax(self.last(y), 1)


def image() -> Tensor:
    return torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(1))


def model() -> nn.Module:
    torch.manual_seed(0)
    return Scaled().eval()


def test_without_hybrid_the_operator_and_its_line_are_named() -> None:
    with pytest.raises(
        NotImplementedError, match=r"pow.*test_hybrid_parts\.py.*the base or the exponent"
    ):
        prepare(model(), image())


def test_with_hybrid_it_stays_float_with_the_reason() -> None:
    float_model = model()
    prepared = prepare(float_model, image(), hybrid=True)
    (found,) = prepared.float_ops
    assert found.name == "_generated_pow_0"
    assert "the base or the exponent is a number" in found.reason
    assert found.source.startswith("test_hybrid_parts.py:")
    names = [op.name for _, op in prepared.operators()]
    assert any(name.startswith("_generated_softmax_0.") for name in names)  # as without hybrid
    set_fake_quantize(prepared, FakeQuantState.CALIBRATION)
    prepared(image())
    set_fake_quantize(prepared, FakeQuantState.VALIDATION)
    with torch.no_grad():
        # 8 bits for each result: 2% of the largest probability
        assert float((prepared(image()) - float_model(image())).abs().max()) < 0.02
    assert hbdk4.export(prepared, image())[0](image()).shape == (2, 2, 4, 4)

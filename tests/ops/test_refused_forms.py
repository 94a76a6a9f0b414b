"""Call forms without an integer form: the call stays float and its reason says why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune.quantization import FakeQuantState, prepare, set_fake_quantize
from tests.surroundings import no_run_files

__all__ = ["no_run_files"]  # a fixture of every test here

LINE, IMAGE, VOLUME = torch.randn(1, 3, 8), torch.randn(1, 3, 8, 8), torch.randn(1, 3, 4, 4, 4)
FORMS: dict[str, tuple[Callable[[Tensor], Any], Tensor]] = {
    "max_pool with return_indices": (nn.MaxPool1d(2, return_indices=True), LINE),
    "max_pool3d with return_indices": (nn.MaxPool3d(2, return_indices=True), VOLUME),
    "adaptive_max_pool1d with return_indices": (
        nn.AdaptiveMaxPool1d(2, return_indices=True),
        LINE,
    ),
    "adaptive_max_pool3d with return_indices": (
        nn.AdaptiveMaxPool3d(2, return_indices=True),
        VOLUME,
    ),
    "lp_pool has an integer form for norm_type 1 and 2": (lambda x: F.lp_pool2d(x, 3, 2), IMAGE),
    "view(dtype) reinterprets bits": (lambda x: x.view(torch.int32).view(torch.float32), IMAGE),
    "tensordot with computed dims": (
        lambda x: torch.tensordot(x, x, torch.tensor([[3], [3]])),
        IMAGE,
    ),
}


class Behind(nn.Module):
    """An operator that is quantized, then the call."""

    def __init__(self, call: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.call = call

    def forward(self, x: Tensor) -> Tensor:
        result = self.call(torch.relu(x))
        return result[0] if isinstance(result, tuple) else result


@pytest.mark.parametrize("reason", FORMS)
def test_a_form_without_integers_stays_float_with_its_reason(reason: str) -> None:
    call, x = FORMS[reason]
    model = Behind(call).eval()
    with torch.no_grad():
        prepared = prepare(model, x)
        assert any(reason in item.reason for item in prepared.float_ops), prepared.float_ops
        set_fake_quantize(prepared, FakeQuantState._FLOAT)
        assert torch.equal(prepared(x), model(x))

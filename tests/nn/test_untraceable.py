"""torch.jit.trace of prepared models: refused with what to do; converted ones are traced."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from qtune.errors import ArgumentError
from qtune.march import march
from qtune.quantization import (
    DeQuantStub,
    PrepareMethod,
    QuantStub,
    auto_calibrate,
    convert,
    prepare,
)

X = torch.linspace(-1, 1, 48).reshape(1, 3, 4, 4)
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
"""torch announces the end of torch.jit, which the documents' flow uses."""

METHODS = pytest.mark.parametrize("method", [PrepareMethod.EAGER, PrepareMethod.JIT], ids=str)


def calibrated(method: PrepareMethod) -> Any:
    model = nn.Sequential(QuantStub(), nn.Conv2d(3, 4, 1), nn.ReLU(), DeQuantStub()).eval()
    with march("nash-e"):
        return auto_calibrate(prepare(model, X, method=method), [X]).eval()


@METHODS
def test_a_trace_is_refused_and_the_model_goes_on_as_before(method: PrepareMethod) -> None:
    model = calibrated(method)
    before = model(X)
    for traced in (model, nn.Sequential(model)):
        with pytest.raises(ArgumentError, match=r"isn't traced.*Convert it first.*docs/deploy\.md"):
            torch.jit.trace(traced, X)
    assert torch.equal(model(X), before)


@METHODS
def test_the_converted_model_is_traced(method: PrepareMethod) -> None:
    model = calibrated(method)
    with march("nash-e"):
        deploy = convert(model)
    assert torch.equal(torch.jit.trace(deploy, X)(X), deploy(X))

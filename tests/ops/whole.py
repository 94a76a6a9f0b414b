"""A float model through every stage: prepare, calibrate, export, convert, and three equal runs."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from qtune.bpu import compiler
from qtune.bpu.ort import run_in_onnxruntime
from qtune.capture.structure import flatten
from qtune.hbir.module import HbirModule
from qtune.march import march
from qtune.nn.prepared import PreparedModel
from qtune.quantization import FakeQuantState, prepare, set_fake_quantize
from qtune.quantization.hbdk4 import export


def leaves(output: Any) -> list[Tensor]:
    return flatten(output)[0]


def relative(value: Tensor, right: Tensor) -> float:
    """The largest difference, as a part of the largest right value."""
    return float((value - right).abs().max() / right.abs().max().clamp(min=1e-12))


class Calls(nn.Module):
    """A function as a model."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> Any:
        return self.function(*args)


@dataclass
class Whole:
    """The stages of one model on one input."""

    model: nn.Module
    inputs: tuple[Tensor, ...]
    calib: PreparedModel
    quantized: HbirModule

    @property
    def names(self) -> list[str]:
        return [node.meta["name"] for node, _ in self.calib.operators()]

    def fake(self) -> list[Tensor]:
        with torch.no_grad():
            return leaves(self.calib(*self.inputs))

    def right(self) -> list[Tensor]:
        with torch.no_grad():
            return leaves(self.model(*self.inputs))

    def integer(self) -> list[Tensor]:
        """Results of the fast kernels, after reference and ONNX Runtime agreed bit for bit."""
        function = self.quantized[0]
        feed = {item.name: x for item, x in zip(function.inputs, self.inputs, strict=True)}
        fast, exact = function.run(feed), function.run(feed, mode="reference")
        by_ort = run_in_onnxruntime(self.quantized, {k: x.numpy() for k, x in feed.items()})
        for name, value in fast.items():
            assert torch.equal(value, exact[name]), f"{name}: reference differs"
            np.testing.assert_array_equal(value.numpy(), by_ort[name], err_msg=name)
        return list(fast.values())


def whole(
    model: Any,
    *inputs: Tensor,
    setter: Any = None,
    pure: bool = True,
    instead_of_nan: float = float("nan"),
) -> Whole:
    """Calibrate on ``inputs``; ``pure``: nothing may stay float.

    In ``_FLOAT`` the prepared model equals the float one within 1e-5 (numerics.md section 4), with
    ``instead_of_nan`` where that one gives NaN.
    """
    model = model if isinstance(model, nn.Module) else Calls(model)
    model.eval()
    with march("nash-e"), torch.no_grad():
        calib = prepare(model, inputs, qconfig_setter=setter).eval()
        assert not pure or calib.float_ops == ()
        set_fake_quantize(calib, FakeQuantState._FLOAT)
        for value, right in zip(leaves(calib(*inputs)), leaves(model(*inputs)), strict=True):
            assert value.shape == right.shape
            right = right.masked_fill(right.isnan(), instead_of_nan)
            # numerics.md section 5: decomposed modules within 1e-5 relative
            torch.testing.assert_close(
                value, right, rtol=1e-5, atol=1e-5 * float(right.abs().max())
            )
        set_fake_quantize(calib, FakeQuantState.CALIBRATION)
        calib(*inputs)
        set_fake_quantize(calib, FakeQuantState.VALIDATION)
        return Whole(model, inputs, calib, compiler.convert(export(calib, inputs), "nash-e"))


def check(model: Any, *inputs: Tensor, bar: float, **options: Any) -> Whole:
    """All integer results lie within ``bar`` of the float ones, relative to the largest."""
    result = whole(model, *inputs, **options)
    for value, right in zip(result.integer(), result.right(), strict=True):
        assert relative(value, right) < bar
    return result


def trains(model: nn.Module, inputs: Sequence[Tensor]) -> nn.Module:
    """One step of training changes every parameter that needs a gradient."""
    with march("nash-e"):
        prepared = prepare(copy.deepcopy(model).train(), tuple(inputs))
    loss = sum(y.pow(2).mean() for y in leaves(prepared(*inputs)))
    loss.backward()
    assert all(w.grad is not None and w.grad.isfinite().all() for w in prepared.parameters())
    return prepared


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeded weights, no run files. Import it into the test module."""
    monkeypatch.setenv("QTUNE_RUN_DIR", "")
    torch.manual_seed(0)

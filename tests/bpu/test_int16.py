"""int16 GEMMs as models: int32 accumulators saturate and are counted, 48-bit ones do not."""

from __future__ import annotations

from fractions import Fraction
from math import floor
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from qtune.bpu.ort import run_in_onnxruntime
from qtune.dtype import QuantDType, qint8, qint16, qint32
from qtune.hbir.module import HbirModule
from qtune.march import march
from qtune.modes import consistency_level
from qtune.quantization import (
    FakeQuantState,
    QconfigSetter,
    get_qconfig,
    prepare,
    set_fake_quantize,
)
from qtune.quantization.hbdk4 import convert, export
from qtune.quantization.qconfig_setter import ConvDtypeTemplate, ModuleNameTemplate
from qtune.quantizers.fake_quantize import FakeQuantize

FEATURES = 1024  # 1024 products of 32767 * 127 leave int32
WORST = torch.ones(3, FEATURES)
WORST[1] = -1.0
WORST[2, ::2] = -1.0


class Head(nn.Module):
    """A linear with an output dtype of its own in front of the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(FEATURES, 4, bias=False)
        self.last = nn.Linear(4, 2)
        torch.manual_seed(0)
        self.wide.weight.data.uniform_(0.9, 1.0)
        self.wide.weight.data[2, 1::2] *= -1.0
        self.wide.weight.data[3] *= 0.001
        self.wide.weight.data[3, 0] = 1.0  # the scale of a row whose sum stays small

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.wide(x))


def integer_module(weight: QuantDType, model: nn.Module, on: str = "nash-e") -> HbirModule:
    templates = [
        ModuleNameTemplate({"": qint16}),
        ConvDtypeTemplate(input_dtype=qint16, weight_dtype=weight),
    ]
    with march(on):
        p = prepare(model.eval(), WORST, QconfigSetter(get_qconfig(), templates))
        set_fake_quantize(p.eval(), FakeQuantState.CALIBRATION)
        p(WORST)
        set_fake_quantize(p, FakeQuantState.VALIDATION)
        return convert(export(p, WORST), on)


@pytest.fixture(autouse=True)
def _no_run_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QTUNE_RUN_DIR", "")


def codes_of_worst() -> np.ndarray[Any, Any]:
    """``WORST`` quantized: absmax 1 gives the scale 1 / 32767.5."""
    scale = np.float32(1.0) / np.float32(32767.5)
    codes = np.clip(np.floor(WORST.numpy() / scale + np.float32(0.5)), -32768, 32767)
    return codes.astype(np.int64)


@pytest.mark.parametrize("level", [None, 0])
def test_saturated_int32_accumulators_are_counted_and_right_everywhere(level: int | None) -> None:
    """numerics.md section 2.1; on level 0 the accumulator is a result of its own."""
    with consistency_level(level):
        module = integer_module(qint8, Head())
    op_type = "QLinear16x8Acc" if level == 0 else "QLinear16x8"
    first = next(n for n in module.model.graph if n.op_type == op_type)
    array = first.inputs[1].const_value.numpy().astype(np.int64)
    sums = codes_of_worst() @ array.T
    lost = int(((sums < -(2**31)) | (sums >= 2**31)).sum())
    assert 0 < lost < sums.size
    function = module[0]
    feed = {function.inputs[0].name: WORST}
    results = []
    for mode in ("fast", "reference"):
        results += function.run(feed, mode=mode).values()
        assert sum(function.saturation.values()) == lost
    results.append(torch.as_tensor(run_in_onnxruntime(module, WORST)))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_dual_int16_keeps_every_bit_of_the_same_sums() -> None:
    """48 bits: nothing saturates, and the codes are those of exact arithmetic."""
    module = integer_module(qint16, nn.Sequential(nn.Linear(FEATURES, 4), nn.ReLU()))
    function = module[0]
    feed = {function.inputs[0].name: WORST}
    (node,) = (n for n in module.model.graph if n.op_type == "QLinear16x16")
    w, bias, m, n = (node.inputs[i].const_value.numpy().astype(np.int64) for i in (1, 2, 3, 4))
    sums = codes_of_worst() @ w.T + bias
    assert np.abs(sums).max() > 2**31
    exact = [
        max(0, min(32767, floor(Fraction(int(s) * int(a), 2 ** int(b)) + Fraction(1, 2))))
        for row in sums
        for s, a, b in zip(row, m.ravel(), n.ravel(), strict=True)
    ]
    (fast,) = function.run(feed).values()
    assert function.saturation == {}
    (reference,) = function.run(feed, mode="reference").values()
    step = float(fast[fast > 0].min()) / min(code for code in exact if code > 0)
    assert np.allclose(fast.numpy().ravel() / step, exact, rtol=1e-6)  # float32 codes times scale
    assert torch.equal(fast, reference)
    assert torch.equal(fast, torch.as_tensor(run_in_onnxruntime(module, WORST)))


def test_dual_int16_has_no_high_precision_output(caplog: pytest.LogCaptureFixture) -> None:
    """The last GEMM gets an output dtype instead, and prepare names it (toolchain_facts 1.2)."""
    templates = [
        ConvDtypeTemplate(input_dtype=qint16, weight_dtype=qint16),
        ModuleNameTemplate({"last": {"output": qint32}}),
    ]
    with march("nash-e"):
        p = prepare(Head().eval(), WORST, QconfigSetter(get_qconfig(), templates))
    output = p.get_submodule("last").activation_post_process
    assert isinstance(output, FakeQuantize)
    assert "last output" in caplog.text
    assert "two int16 operands have no high-precision output" in caplog.text


@pytest.mark.parametrize("on", ["bayes", "bayes-e"])
def test_dual_int16_starts_with_nash(on: str, caplog: pytest.LogCaptureFixture) -> None:
    module = integer_module(qint16, nn.Sequential(nn.Linear(FEATURES, 4), nn.ReLU()), on)
    assert "weight: asked qint16, given qint8" in caplog.text
    assert not any("16x16" in node.op_type for node in module.model.graph)

"""What a march can't run is one error that names the operator, the reason and the remedy."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qtune
from qtune import march as marches
from qtune.bpu.convert import convert
from qtune.dtype import QuantDType, qint8, qint16
from qtune.errors import ConvertError, MarchError
from qtune.march import March
from qtune.nn.prepared import PreparedModel
from qtune.nn.qat import iter_stubs
from qtune.quantization import (
    FakeQuantState,
    QconfigSetter,
    get_qconfig,
    prepare,
    set_fake_quantize,
)
from qtune.quantization.hbdk4 import export
from qtune.quantization.qconfig_setter import MatmulDtypeTemplate, ModuleNameTemplate

IMAGE = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Function(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def classifier() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 4)).eval()


def convolutions() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3)).eval()


def calibrated(
    model: nn.Module, march: str, dtype: QuantDType = qint8, x: Tensor = IMAGE
) -> PreparedModel:
    setter = QconfigSetter(get_qconfig(), [ModuleNameTemplate({"": dtype})])
    with marches.march(march):
        prepared = prepare(model.eval(), x, setter).eval()
    set_fake_quantize(prepared, FakeQuantState.CALIBRATION)
    prepared(x)
    set_fake_quantize(prepared, FakeQuantState.VALIDATION)
    return prepared


def test_without_a_march_the_error_says_how_to_set_one() -> None:
    text = r"no march is set: call qtune\.set_march\('nash-e'\)"
    with pytest.MonkeyPatch.context() as patch:  # undone before the march around the test is
        patch.setattr(marches, "_current", None)
        with pytest.raises(MarchError, match=text):
            prepare(convolutions(), IMAGE)
        qat = export(calibrated(convolutions(), "nash-e"), IMAGE)
        with pytest.raises(MarchError, match=text):
            convert(qat)
        assert convert(qat, "nash-e").march == "nash-e"


@pytest.mark.parametrize("bad", ["nash-x", "", "NASH", None, 8])
def test_unknown_march_is_named_beside_the_known_ones(bad: Any) -> None:
    before = marches.get_march()
    with pytest.raises(MarchError) as caught:
        qtune.set_march(bad)
    assert f"unknown march {bad!r}" in str(caught.value)
    assert all(march.value in str(caught.value) for march in March)
    assert marches.get_march() is before


@pytest.mark.parametrize("spelling", ["nash-e", "NASH_E", "Nash-E", March.NASH_E])
def test_a_march_has_several_spellings(spelling: Any) -> None:
    with marches.march(spelling) as current:
        assert current is March.NASH_E


def test_a_march_is_found_by_name_and_knows_its_cores() -> None:
    assert March.get("NASH_P") is March.NASH_P
    assert (March.NASH_P.num_cores, March.NASH_E.num_cores) == (4, 1)
    assert March.BAYES_E.series == "bayes"
    with pytest.raises(MarchError, match="unknown march 'nash-z'"):
        March.get("nash-z")


def test_unknown_march_in_convert_is_refused() -> None:
    qat = export(calibrated(convolutions(), "nash-e"), IMAGE)
    with pytest.raises(MarchError, match="unknown march 'x5'"):
        convert(qat, "x5")


@pytest.mark.parametrize(
    ("march", "model", "expected"),
    [
        ("bernoulli2", classifier, ["3 (linear)", "bernoulli2 has no linear"]),
        ("bernoulli2", lambda: Function(lambda x: F.pad(x, (1, 1))), ["(pad)", "has no pad"]),
        (
            "bernoulli2",
            lambda: Function(lambda x: x.reshape(1, 3, 2, 4, 8)),
            ["(reshape)", "5 dimensions", "at most 4"],
        ),
        (
            "bernoulli2",
            lambda: nn.Sequential(nn.AvgPool2d(8)),
            ["0 (avg_pool2d)", "8"],
        ),
        (
            "nash-e",
            lambda: nn.Sequential(nn.Conv2d(3, 1, 33, padding=16)),
            ["0 (conv2d)", "the kernel size is 33, at most 31"],
        ),
        (
            "bayes",
            lambda: nn.Sequential(nn.Conv2d(3, 1, 3, stride=2, dilation=2)),
            ["0 (conv2d)", "stride 2 together with dilation 2"],
        ),
    ],
)
def test_prepare_names_operator_reason_and_remedy(
    march: str, model: Callable[[], nn.Module], expected: list[str]
) -> None:
    with marches.march(march), pytest.raises(MarchError) as caught:
        prepare(model().eval(), IMAGE)
    message = str(caught.value)
    assert message.startswith(f"march {march} can't run: ")
    assert all(text in message for text in expected), message
    assert message.endswith(
        "Replace these operators, choose another march, or keep their modules float with "
        "module.qconfig = None or hybrid=True."
    )


def test_prepare_lists_every_operator_that_the_march_cant_run() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.LeakyReLU(), nn.Linear(8, 2))
    with marches.march("bernoulli2"), pytest.raises(MarchError) as caught:
        prepare(model.eval(), IMAGE)
    assert all(f"{name} (" in str(caught.value) for name in ("1", "2", "3"))


def test_the_remedies_of_the_message_work() -> None:
    assert calibrated(classifier(), "bayes")(IMAGE).shape == (1, 4)
    model = classifier()
    model[3].qconfig = None
    kept = calibrated(model, "bernoulli2")
    assert [(item.name, item.op) for item in kept.float_ops] == [("3", "linear")]
    module = convert(export(kept, IMAGE), "bernoulli2")
    assert torch.isfinite(module[0](IMAGE)).all()


def test_int16_where_the_march_has_none_becomes_int8_with_the_reason() -> None:
    prepared = calibrated(convolutions(), "bernoulli2", qint16)
    assert {quantizer.dtype for _, _, quantizer in iter_stubs(prepared)} == {qint8}
    texts = [(c.name, c.asked, c.given, c.reason) for c in prepared.resolution.corrections]
    assert ("1", "qint16", "qint8", "bernoulli2 takes qint8 as output of conv2d") in texts
    assert convert(export(prepared, IMAGE), "bernoulli2").march == "bernoulli2"


def test_int16_matmul_falls_back_to_int8_on_bayes_with_the_reason() -> None:
    model = Function(lambda x: x @ x.transpose(-1, -2) + 0.5)
    setter = QconfigSetter(
        get_qconfig(), [ModuleNameTemplate({"": qint16}), MatmulDtypeTemplate(qint16)]
    )
    with marches.march("bayes-e"):
        prepared = prepare(model.eval(), IMAGE, setter).eval()
    found = [(c.port, c.asked, c.given, c.reason) for c in prepared.resolution.corrections]
    reason = "bayes-e takes qint8 as input of matmul"
    assert found == [(f"input-{i}", "qint16", "qint8", reason) for i in (0, 1)]
    set_fake_quantize(prepared, FakeQuantState.CALIBRATION)
    prepared(IMAGE)
    set_fake_quantize(prepared, FakeQuantState.VALIDATION)
    module = convert(export(prepared, IMAGE), "bayes-e")
    assert [n.op_type for n in module.model.graph if "MatMul" in n.op_type] == ["QMatMul"]


def test_int16_resize_gets_an_int8_grid_of_its_own_with_the_reason() -> None:
    model = Function(lambda x: F.interpolate(x, scale_factor=2))
    prepared = calibrated(model, "nash-e", qint16)
    (correction,) = prepared.resolution.corrections
    assert (correction.port, correction.given) == ("input-0", "qint8")
    assert correction.reason == "nash-e takes qint8 as input of interpolate"
    module = convert(export(prepared, IMAGE), "nash-e")
    assert module[0](IMAGE).shape == (1, 3, 16, 16)


def convert_error(prepared: PreparedModel, march: str) -> list[str]:
    """The lines of the error of converting for ``march``."""
    with pytest.raises(ConvertError) as caught:
        convert(export(prepared, IMAGE), march)
    first, *lines = str(caught.value).splitlines()
    assert first == f"{len(lines)} operator(s) can't be converted for {march}:"
    return [line.removeprefix("  - ") for line in lines]


def test_convert_for_another_march_names_operator_reason_and_remedy() -> None:
    (line,) = convert_error(calibrated(classifier(), "nash-e"), "bernoulli2")
    place, _, reason = line.partition(": ")
    assert re.fullmatch(r"3 \(test_marches\.py:\d+\)", place)
    assert reason == "linear does not run on bernoulli2; keep it outside the stubs"


def test_a_march_that_can_run_the_module_gives_the_same_integers() -> None:
    exported = export(calibrated(convolutions(), "nash-e"), IMAGE)
    own, other = convert(exported, "nash-e"), convert(exported, "bayes")
    assert (own.march, other.march) == ("nash-e", "bayes")
    assert torch.equal(own[0](IMAGE), other[0](IMAGE))


def test_convert_of_int16_for_an_int8_march_names_the_gemm_and_the_stub() -> None:
    lines = convert_error(calibrated(convolutions(), "nash-e", qint16), "bernoulli2")
    named = {line.split(" (")[0].partition(":")[0] for line in lines}
    assert {"0", "_input_0_quant"} <= named
    assert any("qint16" in line and "Set that operand to qint8" in line for line in lines)


def test_convert_refuses_a_resize_whose_dtype_was_forced_to_int16() -> None:
    prepared = calibrated(Function(lambda x: F.interpolate(x, scale_factor=2)), "nash-e")
    for _, _, quantizer in iter_stubs(prepared):
        quantizer.set_dtype(qint16)
    (line,) = convert_error(prepared, "nash-e")
    place, _, reason = line.partition("): ")
    assert place.startswith("_generated_interpolate_0 (test_marches.py:")
    assert reason.startswith("interpolate on nash-e: inputs may be qint8")
    assert line.endswith("got qint16; set the dtype")


@pytest.mark.parametrize("march", list(March), ids=str)
def test_every_march_runs_an_int8_convolution_net(march: March) -> None:
    prepared = calibrated(convolutions(), march.value)
    module = convert(export(prepared, IMAGE), march)
    assert module.march == march.value
    (gemm,) = [op for _, op in prepared.operators() if op.name == "2"]
    relu = prepared.get_submodule("1").activation_post_process
    # High-precision output: the bias is rounded to steps of the accumulator, sums are exact.
    step = float(relu.scale * gemm.weight_fake_quant.scale.max())
    assert (module[0](IMAGE) - prepared(IMAGE).detach()).abs().max() <= 0.5 * step + 1e-6

"""check_model: 0 where the BPU runs everything, else 1 and a line for each operator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qtune.bpu.convert import convert
from qtune.errors import ArgumentError
from qtune.hbir.export import export
from qtune.nn.prepared import PreparedModel
from qtune.quantization import (
    DeQuantStub,
    FakeQuantState,
    PrepareMethod,
    QuantStub,
    check_model,
    prepare,
    set_fake_quantize,
)
from qtune.quantization import convert as convert_torch
from qtune.utils import check_model as facade

X = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """A convolution, a function that bernoulli2 lacks, a linear layer that it lacks too."""

    def __init__(self, scale: float | None = None) -> None:
        super().__init__()
        self.quant = QuantStub(scale=scale)
        self.conv = nn.Conv2d(3, 4, 3)
        self.act = nn.ELU()
        self.fc = nn.Linear(144, 3)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.fc(self.act(self.conv(self.quant(x))).flatten(1))
        return result


def calibrated(model: nn.Module, **options: Any) -> PreparedModel:
    prepared = prepare(model.eval(), X, **options).eval()
    set_fake_quantize(prepared, FakeQuantState.CALIBRATION)
    prepared(X)
    set_fake_quantize(prepared, FakeQuantState.VALIDATION)
    return prepared


def test_a_model_that_fits_passes_in_every_form(capsys: pytest.CaptureFixture[str]) -> None:
    prepared = calibrated(Net())
    qat = export(prepared, X)
    assert check_model(prepared, X) == 0
    assert check_model(qat) == check_model(qat, march="nash-m") == 0
    assert check_model(convert(qat, "nash-e")) == 0
    assert capsys.readouterr().out == ""
    assert facade.check_model is check_model


def test_each_operator_that_the_march_lacks_is_shown_with_its_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert check_model(calibrated(Net()), X, "bernoulli2") == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    for name, line in zip(("act", "fc"), lines, strict=True):
        assert line.startswith(f"check_model: {name} (test_march.py:")
        assert line.endswith("does not run on bernoulli2; keep it outside the stubs")


def test_operators_on_the_cpu_count_but_not_those_outside_the_stubs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    hybrid = calibrated(Net(), hybrid=True, hybrid_dict={"module_name": ["act"]})
    assert check_model(hybrid, X) == 1
    assert check_model(convert(export(hybrid, X))) == 1
    line = "check_model: act: it runs on the CPU: hybrid_dict names act"
    assert capsys.readouterr().out.splitlines() == [line, line]

    class Outside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.net(torch.tanh(x))
            return result

    assert check_model(calibrated(Outside()), X) == 0


def test_advice_is_shown_and_a_path_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepared = calibrated(Net())
    assert check_model(prepared, X, advice=1) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("check_model: where each operator runs\n[")
    items = json.loads(shown.partition("\n")[2])
    assert {item["backend"] for item in items} == {"bpu", "vpu"}
    check_model(prepared, X, "bernoulli2", advice=tmp_path / "advice.json")
    items = json.loads((tmp_path / "advice.json").read_text())
    assert [i["loc"] for i in items if i["backend"] == "external_cpu"] == ["act", "fc"]


def test_scales_count_unless_they_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    raw = prepare(Net().eval(), X).eval()
    assert check_model(raw, X) == 1
    assert "act (output)" in capsys.readouterr().out
    assert check_model(raw, X, check_quanti_param=False) == 0
    assert check_model(raw, X, "bernoulli2", check_quanti_param=False) == 1
    assert not any(bool(m.observed) for m in raw.modules() if hasattr(m, "quant_min"))


def test_camera_inputs_have_the_scale_of_their_images(capsys: pytest.CaptureFixture[str]) -> None:
    assert check_model(calibrated(Net(scale=1 / 128)), X, input_source="pyramid") == 0
    other = calibrated(Net())
    assert check_model(other, X, input_source=["resizer"]) == 1
    assert "_input_0: images of a resizer are quantized at the scale 1/128" in (
        capsys.readouterr().out
    )
    assert check_model(other, X, input_source="ddr") == 0


def test_a_module_made_for_another_march_does_not_pass(capsys: pytest.CaptureFixture[str]) -> None:
    module = convert(export(calibrated(Net()), X), "nash-e")
    assert check_model(module, march="nash-p") == 1
    assert "was made for the march nash-e, but nash-p is asked for" in capsys.readouterr().out


def test_wrong_arguments_are_named() -> None:
    prepared = calibrated(Net())
    with pytest.raises(ArgumentError, match="prepare the model first"):
        check_model(nn.Linear(1, 1), X)
    with pytest.raises(ArgumentError, match="needs example_inputs"):
        check_model(prepared)
    with pytest.raises(ArgumentError, match="one of ddr, resizer, pyramid"):
        check_model(prepared, X, input_source="camera")


def two_convolutions() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), DeQuantStub())


@pytest.mark.parametrize("deploy", [False, True], ids=["prepared", "converted"])
def test_an_eager_layer_on_float_inputs_does_not_pass(
    deploy: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    eager = calibrated(two_convolutions(), method=PrepareMethod.EAGER)
    assert check_model(convert_torch(eager) if deploy else eager, X) == 1
    shown = capsys.readouterr().out
    assert "check_model: 0: it runs on the CPU: its weight is quantized but its input is" in shown
    assert "check_model: 2" not in shown


def test_stubs_of_the_user_or_of_prepare_let_the_same_layers_pass() -> None:
    stubbed = nn.Sequential(QuantStub(), *two_convolutions())
    assert check_model(calibrated(stubbed, method=PrepareMethod.EAGER), X) == 0
    assert check_model(calibrated(two_convolutions()), X) == 0


def test_a_layer_that_its_qconfig_keeps_float_is_named_with_that_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = nn.Conv2d(3, 3, 1)
    first.qconfig = None
    model = nn.Sequential(first, QuantStub(), *two_convolutions())
    assert check_model(calibrated(model, method=PrepareMethod.EAGER), X) == 1
    shown = capsys.readouterr().out
    assert "its qconfig is None" in shown
    assert "its weight is quantized" not in shown

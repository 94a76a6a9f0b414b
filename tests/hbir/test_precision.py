"""precision_config: float or 31-bit requantize for single operators of an exported module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from qtune.bpu.compiler import PrecisionConfig, convert, load, save
from qtune.bpu.convert import advice_items
from qtune.bpu.ort import run_in_onnxruntime
from qtune.errors import ArgumentError, ConvertError
from qtune.hbir.module import HbirModule
from qtune.march import march
from qtune.nn.prepared import PreparedModel
from qtune.quantization import FakeQuantState, prepare, set_fake_quantize
from qtune.quantization.hbdk4 import export

KEEP, HIGH = PrecisionConfig.KEEP_FLOAT, PrecisionConfig.HIGH_PRECISION_QPP
X = torch.randn(2, 3, 10, 10, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def _no_run_files(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("QTUNE_RUN_DIR", "")
    with march("nash-e"):
        yield


@pytest.fixture
def prepared() -> PreparedModel:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Sigmoid()]
    p = prepare(nn.Sequential(*layers, nn.Conv2d(4, 4, 1), nn.ReLU()).eval(), X).eval()
    set_fake_quantize(p, FakeQuantState.CALIBRATION)
    with torch.no_grad():
        p(X)
    set_fake_quantize(p, FakeQuantState.VALIDATION)
    return p


def kinds(module: HbirModule) -> list[str]:
    return [node.op_type for node in module.model.graph]


def result(module: HbirModule, mode: str = "fast") -> Tensor:
    (found,) = module[0].run({module[0].inputs[0].name: X}, mode).values()
    return found


@pytest.mark.parametrize(
    ("choices", "made", "floats"),
    [
        ({"0": HIGH}, ["QConvAcc", "Requantize", "QMaxPool"], []),
        ({"2": KEEP}, ["Conv", "Identity", "Relu", "Quantize", "QMaxPool"], ["0", "1", "2"]),
        ({"3": KEEP}, ["QConv", "Dequantize", "MaxPool", "Quantize", "Lut8"], ["3"]),
        ({"0": HIGH, "3": KEEP}, ["QConvAcc", "Requantize", "Dequantize", "MaxPool"], ["3"]),
    ],
)
def test_a_choice_holds_for_the_fused_group_of_its_operator(
    prepared: PreparedModel,
    choices: dict[str, PrecisionConfig],
    made: list[str],
    floats: list[str],
    tmp_path: Path,
) -> None:
    qat = export(prepared, X)
    qat.precision_config.update(choices)
    save(qat, tmp_path / "qat.bc")
    module = convert(load(tmp_path / "qat.bc"), "nash-e")
    assert " ".join(made) in " ".join(kinds(module))
    assert [note["op"] for note in module.report] == floats
    on_cpu = {item["loc"] for item in advice_items(module) if item["backend"] == "external_cpu"}
    assert on_cpu == set(floats)
    with torch.no_grad():
        expected = prepared(X)
    assert float((result(module) - expected).abs().max()) <= float(expected.max()) / 127 * 1.001
    # one step: the bar of a convolution; the factor is float32 rounding
    assert torch.equal(result(module), result(module, "reference"))
    assert torch.equal(result(module), torch.as_tensor(run_in_onnxruntime(module, X)))


def test_no_choice_is_the_usual_conversion(prepared: PreparedModel) -> None:
    qat = export(prepared, X)
    qat.precision_config["0"] = KEEP
    assert dict(qat.precision_config) == {"0": KEEP}
    del qat.precision_config["0"]
    assert kinds(convert(qat, "nash-e")) == kinds(convert(export(prepared, X), "nash-e"))


def test_a_table_can_not_become_float_after_export(prepared: PreparedModel) -> None:
    qat = export(prepared, X)
    qat.precision_config["4"] = KEEP
    with pytest.raises(ConvertError, match=r"4.*look-up table.*hybrid_dict"):
        convert(qat, "nash-e")


def test_high_precision_needs_a_march_with_levels(
    prepared: PreparedModel, caplog: pytest.LogCaptureFixture
) -> None:
    qat = export(prepared, X)
    qat.precision_config["0"] = HIGH
    assert "Requantize" not in kinds(convert(qat, "nash-p"))
    assert "has no effect on nash-p, only on nash-e and nash-m" in caplog.text


def test_wrong_choices_are_named(prepared: PreparedModel) -> None:
    qat = export(prepared, X)
    with pytest.raises(ArgumentError, match=r"'head'.*no operator.*it has: 0, 1, 2"):
        qat.precision_config["head"] = KEEP
    with pytest.raises(ArgumentError, match=r"'0'.*PrecisionConfig.KEEP_FLOAT.*got 'float'"):
        qat.precision_config["0"] = "float"  # type: ignore[assignment]
    with pytest.raises(ArgumentError, match="convert has read it"):
        convert(qat, "nash-e").precision_config["0"] = KEEP

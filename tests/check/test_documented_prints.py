"""The print-outs of the documents, made by their own nets; the rules of reading them."""

from __future__ import annotations

import logging
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.ao.quantization import DeQuantStub, QuantStub

from qtune import qint8, qint16
from qtune.capture.inputs import Inputs
from qtune.check.report import CheckReport
from qtune.quantization import (
    QconfigSetter,
    get_default_qconfig,
    get_qconfig,
    prepare,
    prepare_qat,
    prepare_qat_fx,
)
from qtune.quantization.observer_v2 import FixedScaleObserver
from qtune.quantization.qconfig import default_qat_8bit_fake_quant_qconfig
from qtune.quantization.qconfig_setter import (
    ConvDtypeTemplate,
    MatmulDtypeTemplate,
    ModuleNameTemplate,
)
from qtune.utils.check_model import check_qat_model
from qtune.utils.quant_profiler import check_qconfig

X = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """The net on the tuning tool's first page; with ``resize`` left out, that of its print-out."""

    def __init__(self, resize: bool = True) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)
        self.relu = nn.ReLU()
        self.quant = QuantStub()
        self.dequant = DeQuantStub()
        self.resize = resize

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.conv(self.quant(x)))
        if self.resize:
            x = nn.functional.interpolate(x, scale_factor=1.3, mode="bilinear", align_corners=False)
        return self.dequant(x)


def cells(section: str) -> list[list[str]]:
    """The rows of the boxed table in a section, its head first."""
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def sections(report: CheckReport) -> dict[str, str]:
    """First line -> section."""
    parts = [part.strip() for part in str(report).split("\n\n")]
    return {part.splitlines()[0]: part for part in parts if part}


def qat_of(name: str) -> str:
    return f"<class 'qtune.nn.qat.{name}'>"


def test_the_print_out_of_the_document() -> None:
    net = Net(resize=False)
    net.qconfig = default_qat_8bit_fake_quant_qconfig
    report = check_qat_model(prepare_qat(net), X)
    found = sections(report)
    assert list(found)[:4] == [
        "Fusable modules are listed below:",
        "All modules in the model run exactly once.",
        "Each layer out qconfig:",
        "Weight qconfig:",
    ]
    unfused = found["Fusable modules are listed below:"].splitlines()
    assert [line.split(maxsplit=1) for line in (unfused[1], *unfused[3:5])] == [
        ["name", "type"],
        ["conv", qat_of("Conv2d")],
        ["relu", qat_of("ReLU")],
    ]
    moving = "MovingAverageMinMaxObserver"
    assert cells(found["Each layer out qconfig:"]) == [
        ["Module Name", "Module Type", "Input dtype", "out dtype", "ch_axis", "observer"],
        ["quant", qat_of("QuantStub"), "torch.float32", "qint8", "-1", moving],
        ["conv", qat_of("Conv2d"), "qint8", "qint8", "-1", moving],
        ["relu", qat_of("ReLU"), "qint8", "qint8", "qconfig = None", ""],
        ["dequant", qat_of("DeQuantStub"), "qint8", "torch.float32", "qconfig = None", ""],
    ]
    assert cells(found["Weight qconfig:"]) == [
        ["Module Name", "Module Type", "weight dtype", "ch_axis", "observer"],
        ["conv", qat_of("Conv2d"), "qint8", "0", "MovingAveragePerChannelMinMaxObserver"],
    ]


def test_the_first_script_of_the_tuning_tool() -> None:
    templates = [ModuleNameTemplate({"": qint8}), ConvDtypeTemplate(), MatmulDtypeTemplate()]
    model = prepare(Net(), X, qconfig_setter=QconfigSetter(get_qconfig(), templates))
    report = check_qat_model(model, X)
    assert report
    found = sections(report)
    assert list(found)[0] == "All modules in the model run exactly once."
    names = [row[0] for row in cells(found["Each layer out qconfig:"])[1:]]
    assert names == ["quant", "conv", "relu", "_generated_interpolate_0", "dequant"]
    assert cells(found["Weight qconfig:"])[1][0] == "conv"
    assert report.high_precision == {"dequant": False}  # it takes qint8
    assert report.messages == ()


def test_dtype_statistics_count_inputs_and_results() -> None:
    net = Net(resize=False)
    net.qconfig = default_qat_8bit_fake_quant_qconfig
    report = check_qat_model(prepare_qat(net), X)
    assert report.dtypes() == {"qint8": (3, 3), "torch.float32": (1, 1)}
    table = cells(sections(report)["input/output dtype statistics:"])
    assert table == [["dtype", "input", "output"], ["qint8", "3", "3"], ["torch.float32", "1", "1"]]


class TwoInputs(nn.Module):
    """A sub with a fixed int16 scale, as in the guide's example of check_qconfig."""

    def __init__(self) -> None:
        super().__init__()
        self.quantx, self.quanty = QuantStub(), QuantStub()
        self.conv = nn.Conv2d(3, 3, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.conv(self.quantx(x)) - self.quanty(y)


def test_messages_are_spelled_as_in_the_guide(tmp_path: Path) -> None:
    fixed = get_default_qconfig(
        activation_qkwargs={"observer": FixedScaleObserver, "scale": 1 / 2**15, "dtype": qint16}
    )
    weight = {"qscheme": torch.per_channel_symmetric, "ch_axis": 0, "dtype": qint16}
    names = [("_generated_sub_0", fixed)]
    config = {"": get_default_qconfig(weight_qkwargs=weight), "module_name": names}
    model = prepare_qat_fx(TwoInputs(), config)
    report = check_qconfig(model, (X, X), out_dir=tmp_path)
    texts = {(m.name, m.text) for m in report.messages}
    assert ("conv", "qint16 weight!!!") in texts
    sub = "_generated_sub_0"
    assert (sub, "Fixed scale 3.0517578125e-05") in texts
    dtypes = "input dtype ['qint8', 'qint8'] is not same with out dtype qint16"
    assert (sub, dtypes) in texts
    rows = cells((tmp_path / "qconfig_info.txt").read_text().split("\n\n")[0])
    assert [row[2] for row in rows if row[0] == sub] == ["['qint8', 'qint8']"]


def test_an_unusual_averaging_constant_is_reported_and_has_a_column() -> None:
    net = Net(resize=False)
    net.qconfig = get_default_qconfig(activation_qkwargs={"averaging_constant": 0.0})
    net.conv.qconfig = get_default_qconfig(weight_qkwargs={"averaging_constant": 0.5})
    report = check_qat_model(prepare_qat(net), X)
    assert {row.name: row.averaging_constant for row in report.outputs} == {
        "quant": 0.0,
        "conv": 0.01,
        "relu": None,
        "dequant": None,
    }
    assert {(m.name, m.text) for m in report.messages} == {
        (
            "quant",
            "averaging_constant = 0.0 is not the default 0.01: data do not move the scale",
        ),
        ("conv", "weight averaging_constant = 0.5 is not the default 0.01"),
    }
    found = sections(report)
    outputs = cells(found["Each layer out qconfig:"])
    assert [row[6] for row in outputs] == ["averaging_constant", "0.0", "0.01", "", ""]
    weights = cells(found["Weight qconfig:"])
    assert [row[5] for row in weights] == ["averaging_constant", "0.5"]


def test_float_input_is_suspicious_but_within_a_fused_pair() -> None:
    net = nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU())
    net.qconfig = default_qat_8bit_fake_quant_qconfig
    report = check_qat_model(prepare_qat(net), X)
    assert [m.name for m in report.messages if m.text.startswith("float input")] == ["0"]
    fused = check_qat_model(prepare(Net(resize=False).eval(), X), X)
    relu = {row.name: row for row in fused.outputs}["relu"]
    assert relu.input_dtypes == ("torch.float32",)
    assert not [m for m in fused.messages if m.text.startswith("float input")]


class Indexed(nn.Module):
    """Indices and masks are no numbers, with or without a scale."""

    def __init__(self) -> None:
        super().__init__()
        self.quant = QuantStub()

    def forward(self, x: Tensor) -> Tensor:
        x = self.quant(x)
        return torch.gather(torch.where(x > 0.5, x, x + x), 1, x.argmax(1, keepdim=True))


def test_indices_and_masks_have_their_own_dtype_and_are_no_float_input() -> None:
    report = check_qat_model(prepare(Indexed().eval(), X), X)
    rows = {row.name: row for row in report.outputs}
    assert rows["_generated_argmax_0"].out_dtype == "torch.int64"
    assert rows["_generated_gather_0"].input_dtypes == ("qint8", "torch.int64")
    assert rows["_generated_where_0"].input_dtypes[0] == "torch.bool"
    assert not [m for m in report.messages if m.text.startswith("float input")]


class Two(nn.Module):
    """Takes two tensors, one of them in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor, more: dict[str, Tensor]) -> Tensor:
        return self.fc(x) + more["y"]


class OneDict(Two):
    """Takes a dict as its only argument."""

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return super().forward(batch["x"], batch)


ROWS = torch.rand(2, 4, generator=torch.Generator().manual_seed(0))
KINDS = {
    "tensor": (nn.Sequential(nn.Linear(4, 4)), ROWS),
    "tuple": (Two(), (ROWS, {"y": ROWS})),
    "dict": (OneDict(), {"x": ROWS, "y": ROWS}),
    "Inputs": (Two(), Inputs(ROWS, more={"y": ROWS})),
    "list of examples": (Two(), [(ROWS, {"y": ROWS})]),
}


@pytest.mark.parametrize(("model", "inputs"), list(KINDS.values()), ids=list(KINDS))
def test_example_inputs_of_every_kind(model: nn.Module, inputs: Any) -> None:
    report = check_qat_model(prepare(model.eval(), inputs), inputs)
    assert report
    assert {row.dtype for row in report.weights} == {"qint8"}


def test_the_report_can_not_be_changed() -> None:
    report = check_qat_model(prepare(Net().eval(), X), X)
    with pytest.raises(FrozenInstanceError):
        report.unfused = ()  # type: ignore[misc]


def test_torchs_own_stubs_are_stubs_in_eager_mode(caplog: pytest.LogCaptureFixture) -> None:
    net = Net(resize=False)
    net.qconfig = default_qat_8bit_fake_quant_qconfig
    with caplog.at_level(logging.WARNING, "qtune"):
        prepare_qat(net)
    assert "has no QuantStub" not in caplog.text

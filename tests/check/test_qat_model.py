"""``check_qat_model``: five sections, and what counts as abnormal."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from qtune import qint8, qint16
from qtune.check.qat_model import check_qat_model
from qtune.errors import ArgumentError
from qtune.quantization import FakeQuantState, QconfigSetter, QuantStub, get_qconfig, prepare
from qtune.quantization.qconfig_setter import ConvDtypeTemplate, ModuleNameTemplate


class Net(nn.Module):
    """Two convolutions; ``shared`` runs twice, ``unused`` never; the add keeps a relu apart."""

    def __init__(self) -> None:
        super().__init__()
        self.quant = QuantStub()
        self.conv = nn.Conv2d(3, 3, 1)
        self.relu = nn.ReLU()
        self.shared = nn.Conv2d(3, 3, 1)
        self.unused = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(self.quant(x))
        y = self.relu(y) + y  # a second user of y: not fused
        return self.shared(self.shared(y))


class Clean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.quant = QuantStub()
        self.conv = nn.Conv2d(3, 3, 1)
        self.relu = nn.ReLU()
        self.head = nn.Conv2d(3, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.relu(self.conv(self.quant(x))))


X = torch.rand(1, 3, 4, 4)


def headers(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("| Module Name")]


def test_sections_come_in_the_documented_order_with_their_columns(tmp_path: Path) -> None:
    fixed = ModuleNameTemplate({"": qint8, "quant": {"dtype": qint8, "threshold": 1.0}})
    model = prepare(Net().eval(), X, QconfigSetter(get_qconfig(), [fixed]))
    report = check_qat_model(model, X, save_results=True, out_dir=tmp_path)
    text = (tmp_path / "model_check_result.txt").read_text()
    assert text == str(report)
    places = [
        text.index(line)
        for line in (
            "Fusable modules are listed below:",
            "Each module called times:",
            "Each layer out qconfig:",
            "Weight qconfig:",
            "input/output dtype statistics:",
            "Please check if these OPs qconfigs are expected..",
        )
    ]
    assert places == sorted(places)
    columns = [[c.strip() for c in line.split("|")[1:-1]] for line in headers(text)]
    assert columns[:3] == [
        ["Module Name", "Module Type", "Input dtype", "out dtype", "ch_axis", "observer"],
        ["Module Name", "Module Type", "weight dtype", "ch_axis", "observer"],
        ["Module Name", "Module Type", "Msg"],
    ]


def test_shared_unused_and_unfused_modules_are_named() -> None:
    report = check_qat_model(prepare(Net().eval(), X), X)
    assert not report
    assert report.shared == {"shared": 2}
    assert report.call_counts["unused"] == 0
    assert report.types["unused"] == "<class 'torch.nn.modules.linear.Linear'>"
    assert any({"conv", "relu"} <= set(item.names) for item in report.unfused)
    text = str(report)
    calls = text.partition("Each module called times:\n")[2].partition("\n\n")[0].splitlines()
    assert calls[0].split() == ["name", "called", "times"]
    counts = {name: int(count) for name, count in (line.split() for line in calls[2:])}
    assert counts == report.call_counts
    assert "Not called (unused?): unused" in text
    assert "Shared (all calls have one scale): shared" in text


def test_a_clean_model_is_true_and_says_that_all_runs_once() -> None:
    report = check_qat_model(prepare(Clean().eval(), X), X)
    assert report
    assert "All modules in the model run exactly once." in str(report)
    assert "Fusable" not in str(report)
    assert set(report.call_counts.values()) == {1}


def test_dtypes_of_a_fused_group_and_of_a_high_precision_output() -> None:
    report = check_qat_model(prepare(Clean().eval(), X), X)
    rows = {row.name: row for row in report.outputs}
    assert (rows["quant"].input_dtypes, rows["quant"].out_dtype) == (("torch.float32",), "qint8")
    conv, relu, head = rows["conv"], rows["relu"], rows["head"]
    assert (conv.input_dtypes, conv.out_dtype) == (("qint8",), "torch.float32")
    assert (conv.ch_axis, conv.observer) == ("qconfig = None", "")
    assert (relu.out_dtype, relu.ch_axis, relu.observer) == ("qint8", "-1", "MinMaxObserver")
    assert head.out_dtype == "torch.float32"
    weight = {row.name: row for row in report.weights}["conv"]
    assert (weight.dtype, weight.ch_axis) == ("qint8", 0)
    texts = {(m.name, m.text) for m in report.messages}
    assert texts == {("head", "activation is None. Maybe output layer?")}


def test_unusual_configurations_get_the_documented_messages() -> None:
    fixed = {"dtype": qint8, "threshold": 1.0}
    templates = [
        ModuleNameTemplate({"": qint8, "quant": fixed, "relu": qint16}),
        ConvDtypeTemplate(qint8, qint16),
    ]
    report = check_qat_model(prepare(Clean().eval(), X, QconfigSetter(get_qconfig(), templates)), X)
    texts = {(m.name, m.text) for m in report.messages}
    assert ("quant", "Fixed scale 0.0078125") in texts
    assert ("conv", "qint16 weight!!!") in texts


def test_only_what_is_abnormal_goes_to_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    check_qat_model(prepare(Net().eval(), X), X)
    shown = capsys.readouterr().out
    assert "Fusable modules are listed below:" in shown
    assert "Each module called times:" in shown
    assert "Each layer out qconfig:" not in shown
    model = nn.Sequential(QuantStub(), nn.ReLU())
    check_qat_model(prepare(model.eval(), X), X)
    assert capsys.readouterr().out == ""


def test_the_model_and_the_random_state_are_left_as_they_were() -> None:
    model = prepare(Net().train(), X)
    before = {name: (m.training, getattr(m, "state", None)) for name, m in model.named_modules()}
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    rng = torch.get_rng_state()
    check_qat_model(model, X)
    after = {name: (m.training, getattr(m, "state", None)) for name, m in model.named_modules()}
    assert after == before
    assert FakeQuantState.QAT in {s for _, s in after.values()}
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in state.items())
    assert torch.equal(torch.get_rng_state(), rng)
    assert not any(m._forward_hooks for m in model.modules())


def test_what_was_calibrated_in_part_lists_the_rest() -> None:
    model = prepare(Clean().eval(), X)
    assert "Never calibrated" not in str(check_qat_model(model, X))  # nothing is, after prepare
    model.quant.activation_post_process.set_qparams(0.01)
    text = str(check_qat_model(model, X))
    assert "Never calibrated: " in text
    assert "conv weight" in text.partition("Never calibrated: ")[2]


def test_a_float_model_is_refused() -> None:
    with pytest.raises(ArgumentError, match="a model made by prepare but got .*Clean"):
        check_qat_model(Clean(), X)


def test_the_result_is_a_value_with_views() -> None:
    report = check_qat_model(prepare(Clean().eval(), X), X)
    assert report.to_dict()["call_counts"] == dict(report.call_counts)
    assert list(report.to_pandas()["name"]) == [row.name for row in report.outputs]


def test_the_facade_serves_the_toolchains_path() -> None:
    from qtune.utils.check_model import check_qat_model as served

    assert served is check_qat_model


def test_a_high_precision_output_of_the_model_is_in_the_file_only(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = check_qat_model(prepare(Clean().eval(), X), X)
    assert "activation is None. Maybe output layer?" in str(report)
    assert capsys.readouterr().out == ""


class WithSoftmax(Clean):
    """Clean, with an operator that prepare takes apart."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).softmax(1)


def test_parts_that_prepare_made_are_as_expected() -> None:
    report = check_qat_model(prepare(WithSoftmax().eval(), X), X)
    assert {row.out_dtype for row in report.outputs} >= {"qint8", "qint16"}
    assert report.messages == ()


def test_prepare_shows_the_structure_and_writes_what_was_chosen(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QTUNE_RUN_DIR", str(tmp_path))
    fixed = ModuleNameTemplate({"": qint8, "quant": {"dtype": qint8, "threshold": 1.0}})
    setter = QconfigSetter(get_qconfig(), [fixed])
    prepare(Clean().eval(), X, setter)
    assert capsys.readouterr().out == ""
    assert "Fixed scale 0.0078125" in (tmp_path / "model_check_result.txt").read_text()
    prepare(Net().eval(), X, setter)
    shown = capsys.readouterr().out
    assert "Each module called times:" in shown
    assert "Please check" not in shown

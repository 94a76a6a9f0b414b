"""get_module_called_count, check_qconfig, check_deploy_device, check_unfused_operations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qtune.errors import ArgumentError
from qtune.nn import qat
from qtune.quantization import (
    FakeQuantState,
    FloatFunctional,
    convert_fx,
    fuse_modules,
    prepare_qat,
    prepare_qat_fx,
    set_fake_quantize,
)
from qtune.utils.quant_profiler import (
    check_deploy_device,
    check_qconfig,
    check_unfused_operations,
    get_module_called_count,
    set_preserve_qat_mode,
)

X = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """A shared convolution before a relu, a chain to fuse, an unused layer."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.relu = nn.Conv2d(3, 3, 1), nn.ReLU()
        self.conv, self.bn, self.add = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), FloatFunctional()
        self.unused = nn.Linear(1, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.shared(self.shared(x)))
        result: Tensor = self.add.add(self.bn(self.conv(x)), x).flatten(1)
        return result


COUNTS = {"shared": 2, "relu": 1, "conv": 1, "bn": 1, "add": 1}


def test_called_counts_of_a_float_model(capsys: Any) -> None:
    net = Net().train()
    before = {key: value.clone() for key, value in net.state_dict().items()}
    assert get_module_called_count(net, X) == {**COUNTS, "unused": 0}
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["name", "called", "times"]
    assert ["shared", "2"] in [line.split() for line in lines]
    assert net.training
    assert all(torch.equal(net.state_dict()[key], value) for key, value in before.items())
    assert not any(module._forward_hooks for module in net.modules())
    only = get_module_called_count(net, X, lambda m: isinstance(m, nn.Conv2d), False)
    assert only == {"shared": 2, "conv": 1}
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("prepare", [prepare_qat, prepare_qat_fx])
def test_called_counts_of_prepared_models(prepare: Any) -> None:
    found = get_module_called_count(prepare(Net().eval()), X, print_tabulate=False)
    assert {name: found[name] for name in COUNTS} == COUNTS


def test_unfused_groups_are_named_and_shared_ones_marked(capsys: Any) -> None:
    net = Net().eval()
    found = check_unfused_operations(net, X)
    assert found == [["conv", "bn", "add"], ["shared(shared)", "relu"]]
    text = capsys.readouterr().out
    assert text.startswith("Fusable modules are listed below:\nname    type\n")
    assert "<class 'torch.nn.modules.batchnorm.BatchNorm2d'>" in text
    fused = fuse_modules(net, ["conv", "bn", "add"])
    assert check_unfused_operations(fused, X, print_tabulate=False) == [["shared(shared)", "relu"]]


def test_qconfig_info_has_three_tables_and_a_line_for_every_call(
    tmp_path: Path, capsys: Any
) -> None:
    model = prepare_qat_fx(Net().eval())
    capsys.readouterr()
    seen: list[str] = []
    check_qconfig(model, X, custom_check_func=lambda m, i, o: seen.append(m.name), out_dir=tmp_path)
    text = (tmp_path / "qconfig_info.txt").read_text()
    outputs, weights, odd = text.split("\n\n")
    assert outputs.startswith("Each layer out qconfig:\n")
    columns = ["Module Name", "Module Type", "Input dtype", "out dtype", "ch_axis", "observer"]
    assert [cell.strip() for cell in outputs.splitlines()[2].strip("|").split("|")] == columns
    names = [line.split("|")[1].strip() for line in outputs.splitlines()[4:-1]]
    assert names[:3] == ["_input_0_quant", "shared", "shared(1)"]
    assert weights.startswith("Weight qconfig:\n")
    assert odd.startswith("Please check if these OPs qconfigs are expected..\n")
    assert capsys.readouterr().out.strip() == odd.strip()
    assert seen.count("shared") == 2


def test_qconfig_info_of_some_operators(tmp_path: Path) -> None:
    model = prepare_qat_fx(Net().eval())
    check_qconfig(model, X, prefixes=("conv", "shared"), types=(qat.Conv2d,), out_dir=tmp_path)
    outputs = (tmp_path / "qconfig_info.txt").read_text().split("\n\n")[0]
    names = {line.split("|")[1].strip() for line in outputs.splitlines()[4:-1]}
    assert names == {"conv", "shared", "shared(1)"}
    check_qconfig(model, X, prefixes="conv", types=nn.Conv2d, out_dir=tmp_path)
    outputs = (tmp_path / "qconfig_info.txt").read_text().split("\n\n")[0]
    assert {line.split("|")[1].strip() for line in outputs.splitlines()[4:-1]} == {"conv"}
    with pytest.raises(ArgumentError, match=r"no operator begins with \['nothing'\]"):
        check_qconfig(model, X, prefixes=("nothing",), out_dir=tmp_path)


def test_devices_of_a_model_without_cpu_operators(tmp_path: Path, capsys: Any) -> None:
    model = prepare_qat_fx(Net().eval())
    capsys.readouterr()
    found = check_deploy_device(model, out_dir=tmp_path)
    assert found["_input_0_quant"] == ("CPU", "module")
    assert found["conv"] == ("BPU", "module")
    assert found["_generated_flatten_0"] == ("BPU", "method")
    shown = capsys.readouterr().out
    assert shown.splitlines()[0].split() == ["name", "deploy", "device", "type"]
    assert (tmp_path / "deploy_device.txt").read_text() == shown


class Hybrid(nn.Module):
    """Three convolutions, of which the middle one stays float."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = (nn.Conv2d(3, 3, 1) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.middle(self.first(x)))


def test_devices_of_a_converted_model_are_those_of_the_prepared_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    parts = {"module_name": ["middle"]}
    model = prepare_qat_fx(Hybrid().eval(), hybrid=True, hybrid_dict=parts)
    set_fake_quantize(model.eval(), FakeQuantState.CALIBRATION)
    model(X)
    set_fake_quantize(model, FakeQuantState.VALIDATION)
    before = check_deploy_device(model, print_tabulate=False)
    assert (tmp_path / "deploy_device.txt").exists()
    assert {name for name, what in before.items() if what[0] == "BPU"} == {"first", "last"}
    assert check_deploy_device(convert_fx(model), print_tabulate=False) == before
    set_preserve_qat_mode(model, ("first",))
    kept = check_deploy_device(convert_fx(model), print_tabulate=False)
    assert kept["first"] == ("CPU", "module")


def test_called_counts_of_a_converted_model() -> None:
    model = prepare_qat_fx(Net().eval())
    set_fake_quantize(model.eval(), FakeQuantState.CALIBRATION)
    model(X)
    set_fake_quantize(model, FakeQuantState.VALIDATION)
    counts = get_module_called_count(convert_fx(model), X, print_tabulate=False)
    assert counts["shared"] == 2
    assert counts["relu"] == counts["add"] == 1
    assert not [name for name in counts if "members" in name]
    assert "conv" not in counts  # the add computes it


def test_types_of_check_qconfig_may_be_float_classes(tmp_path: Path) -> None:
    model = prepare_qat_fx(Net().eval())
    check_qconfig(model, X, types=(nn.Conv2d,), out_dir=tmp_path)
    outputs = (tmp_path / "qconfig_info.txt").read_text().split("\n\n")[0]
    names = {line.split("|")[1].strip() for line in outputs.splitlines()[4:-1]}
    assert names == {"shared", "shared(1)", "conv"}


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: check_deploy_device(prepare_qat(Net())), "a model with a graph"),
        (lambda: check_unfused_operations(prepare_qat(Net()), X), "expected a float model"),
        (lambda: check_qconfig(Net(), X), "expected a model made by prepare"),
        (lambda: get_module_called_count(X, X), "expected an nn.Module"),
    ],
)
def test_other_models_are_refused(call: Any, text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        call()

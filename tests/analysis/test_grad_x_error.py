"""Gradient times error: its numbers by hand, its errors, and that the model is left alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune.analysis.grad_x_error import COLUMNS, SCORE, grad_x_error_tables
from qtune.analysis.sensitivity import HEAD
from qtune.capture.inputs import Inputs
from qtune.dtype import qint16
from qtune.errors import AnalysisError, NotCalibratedError
from qtune.march import march
from qtune.modes import qat_mode
from qtune.nn.qat.op import QATOp, iter_stubs
from qtune.profiler import QuantAnalysis
from qtune.profiler.metric import Metric
from qtune.profiler.sensitivity_table import SensitivityTable
from qtune.quantization import FakeQuantState, get_qconfig, prepare, set_fake_quantize
from qtune.quantization.qconfig import get_default_qconfig
from qtune.quantization.qconfig_setter import ModuleNameTemplate, QconfigSetter
from qtune.quantizers.fake_quantize import FakeQuantize

from .nets import Block, Sum, assert_same, calibrated, fingerprint

Score = tuple[float, float, float]


@pytest.fixture(autouse=True)
def losses() -> Iterator[None]:
    """Metrics of these tests, by what is right or wrong with them."""
    named: dict[str, Callable[[Any, Any], Any]] = {
        "mse_loss": lambda a, b: F.mse_loss(b, a),
        "total": lambda a, b: b.sum(),
        "as_float": lambda a, b: (a - b).sum().item(),
        "as_vector": lambda a, b: a - b,
        "detached": lambda a, b: (a - b.detach()).sum(),
        "counted": lambda a, b: (a != b).sum(),
        "of_the_float_side": lambda a, b: (a * nn.Parameter(torch.ones(()))).sum(),
        "stops": lambda a, b: (_ for _ in ()).throw(KeyboardInterrupt),
    }
    for name, function in named.items():
        Metric.register(name, False, "all")(function)
    yield
    for name in named:
        Metric.unregister(name)


def table_of(model: nn.Module, x: Any, loss: str = "mse_loss", **options: Any) -> SensitivityTable:
    inputs = x if isinstance(x, Inputs) else Inputs(x)
    return grad_x_error_tables(model, inputs, Metric.get_metric(loss), "0", **options)["all"]


def scores(table: SensitivityTable) -> dict[str, Score]:
    return {
        f"{row['op_name']} {row['fake_stub_type']}": (
            row[COLUMNS[0]],
            row[COLUMNS[1]],
            row[COLUMNS[2]],
        )
        for row in table.records()
    }


def error_of(quantizer: FakeQuantize, x: Tensor) -> Tensor:
    with torch.no_grad():
        return quantizer(x) - x


def test_the_numbers_are_those_of_the_definition() -> None:
    x = torch.tensor([[0.3, -0.72]])
    model = calibrated(Sum(), torch.tensor([[1.0, -1.0]]))
    with torch.no_grad():
        model.fc.weight.copy_(torch.tensor([[0.6, 0.25]]))
    found = scores(table_of(model, x, "total"))
    stubs = {f"{name} {kind}": quantizer for name, kind, quantizer in iter_stubs(model)}
    assert set(found) == set(stubs)
    entry = next(name for name in stubs if name != "fc weight")
    (of_input,) = [error_of(stubs[entry], x)]
    weight = torch.tensor([[0.6, 0.25]])
    of_weight = error_of(stubs["fc weight"], weight)
    quantized_x, quantized_w = x + of_input, weight + of_weight
    # the loss is the sum of the one output: the gradient by an operand is the other operand
    assert found[entry][0] == pytest.approx(float((quantized_w * of_input).sum().abs()), rel=1e-5)
    assert found[entry][1] == pytest.approx(float(quantized_w.norm()), rel=1e-6)
    assert found[entry][2] == pytest.approx(float(of_input.norm()), rel=1e-5)
    in_result = (quantized_x * of_weight).sum().abs()
    # float32 sums of two products, whose difference is taken
    assert found["fc weight"] == pytest.approx((float(in_result), 1.0, float(in_result)), abs=1e-6)


def test_samples_are_summed_without_their_signs() -> None:
    model = calibrated(Block(), torch.rand(4, 3, 8, 8))
    x = torch.rand(3, 3, 8, 8)
    alone = [scores(table_of(model, x[i : i + 1], "total")) for i in range(3)]
    together = scores(table_of(model, x, "total"))
    assert together.keys() == alone[0].keys()
    for stub, values in together.items():
        parts = [found[stub][0] for found in alone]
        # other orders of summation in the convolutions may move a value across a rounding step
        assert values[0] == pytest.approx(sum(parts), rel=0.02, abs=1e-6), stub


def test_the_table_has_the_columns_and_the_order_of_the_document() -> None:
    model = calibrated(Block(), torch.rand(2, 3, 8, 8))
    table = table_of(model, torch.rand(2, 3, 8, 8))
    assert table.columns == [*HEAD, "GRAD_X_ERROR", "GRAD_MAGNITUDE", "ERROR_MAGNITUDE"]
    assert (table.output_name, table.metric, table.ascending) == ("all", SCORE, False)
    assert len(table) == len(list(iter_stubs(model)))
    values = table.column(SCORE)
    assert values == sorted(values, reverse=True)
    assert values[0] > 0
    row = next(r for r in table.records() if r["op_name"] == "conv")
    assert row["flops"].startswith("73728(")  # 2 samples * 8 * 8 * 8 * 8 * 9
    assert str(row["dtype"]) == "qint8"


def test_prefixes_types_and_outputs_choose_rows_that_have_the_same_numbers() -> None:
    model = calibrated(Block(), torch.rand(2, 3, 8, 8))
    x = torch.rand(2, 3, 8, 8)
    everything = scores(table_of(model, x))
    some = scores(table_of(model, x, prefixes=("conv",), types=(nn.Conv2d,), output_names=("all",)))
    assert set(some) == {"conv weight"}
    assert all(some[stub] == everything[stub] for stub in some)
    metric = Metric.get_metric("mse_loss")
    with pytest.raises(AnalysisError, match="no operator's name begins with 'none'"):
        grad_x_error_tables(model, Inputs(x), metric, "0", prefixes=("none",))
    with pytest.raises(AnalysisError, match=r"no output named \['boxes'\]"):
        table_of(model, x, output_names=("boxes",))


class Twice(nn.Module):
    """One layer called twice, a table, and a branch that no output depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.idle = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = torch.sigmoid(self.fc(x))
        y = torch.tanh(self.fc(y))
        return {"y": y, "idle": self.idle(y)}


@pytest.fixture
def first_only() -> Iterator[None]:
    Metric.register("first_only", False, "all")(lambda a, b: F.mse_loss(b["y"], a["y"]))
    yield
    Metric.unregister("first_only")


def test_several_calls_are_summed_and_what_the_loss_does_not_see_is_zero(first_only: None) -> None:
    model = calibrated(Twice(), torch.randn(8, 4))
    found = scores(table_of(model, torch.randn(2, 4), "first_only"))
    assert found["idle weight"][:2] == (0.0, 0.0)
    assert found["idle weight"][2] > 0
    busy = {stub for stub in found if not stub.startswith("idle")}
    assert all(found[stub][0] > 0 for stub in busy)
    calls = [node for node, op in model.operators() if op.name == "fc"]
    assert len(calls) == 2


def test_a_clamped_value_passes_no_gradient_to_what_is_before_it() -> None:
    net = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1))
    for layer in (net[0], net[2]):
        nn.init.ones_(layer.weight)
    x = torch.linspace(0.1, 1, 8).reshape(8, 1)
    model = calibrated(net, x)
    with torch.no_grad():
        model.get_submodule("0").bias.fill_(100.0)  # far beyond the scale behind the relu
    found = scores(table_of(model, x, "total"))
    before = [stub for stub in found if stub == "0 weight" or "quant" in stub]
    assert len(before) == 2
    assert all(found[stub][1] == 0 for stub in before)
    score, gradient, error = found["1 output"]  # its error is what clamping takes away
    assert gradient == pytest.approx(8**0.5, rel=0.02)  # the weight behind it, 1 up to its rounding
    assert score > 700
    assert error > 250


@pytest.mark.parametrize("kind", ["int16", "learned", "kept norm"])
def test_other_ports(kind: str) -> None:
    setter = None
    if kind == "int16":
        setter = QconfigSetter(get_qconfig(), [ModuleNameTemplate({"": qint16})])
    if kind == "learned":
        qconfig = get_default_qconfig("lsq", "lsq")
        setter = QconfigSetter(qconfig, [ModuleNameTemplate({"": "qint8"})])
    data = torch.rand(4, 3, 8, 8)
    with qat_mode("with_bn" if kind == "kept norm" else "fuse_bn"):
        model = calibrated(Block(), data, setter=setter)
    before = fingerprint(model)
    found = scores(table_of(model, data))
    assert_same(before, model)
    assert all(score > 0 for score, _, _ in found.values())
    plain = scores(table_of(calibrated(Block(), data), data))
    if kind == "int16":
        outputs = [stub for stub in plain if stub.endswith("output")]
        errors = [found[stub][2] / plain[stub][2] for stub in outputs]
        assert all(ratio < 1 / 50 for ratio in errors)  # steps are 256 times finer, data differ
    if kind == "kept norm":
        weights = [stub for stub in found if stub.endswith("weight")]
        assert sorted(weights) == sorted(s for s in plain if s.endswith("weight"))


class Empty(nn.Module):
    """A layer that is also called on no element."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        return torch.cat([y, self.fc(x[:, :0].reshape(0, 4))]).sum(1)


def test_values_without_elements_add_nothing() -> None:
    x = torch.randn(3, 4)
    found = scores(table_of(calibrated(Empty(), x), x, "total"))
    assert found["fc weight"][0] > 0
    assert all(math.isfinite(value) for values in found.values() for value in values)


class Float16Exp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.exp(-self.fc(x).abs())


def test_a_cast_to_float16_is_a_row_too() -> None:
    templates = [
        ModuleNameTemplate({"": "qint8"}),
        ModuleNameTemplate({"_generated_exp_0": torch.float16}),
    ]
    x = torch.randn(3, 4)
    with march("nash-p"):
        model = calibrated(Float16Exp(), x, setter=QconfigSetter(get_qconfig(), templates))
        rows = table_of(model, x).records()
    casts = [row for row in rows if row["dtype"] == "torch.float16"]
    assert "_generated_exp_0" in {row["op_name"] for row in casts}
    assert all(row[SCORE] > 0 for row in casts)
    assert max(row[SCORE] for row in casts) < max(row[SCORE] for row in rows)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ("as_float", "returned a float "),
        ("as_vector", r"returned a tensor of shape \[2, 4\]; reduce it"),
        ("detached", "without a gradient to the quantized outputs"),
        ("counted", r"returned torch.int64"),
        ("of_the_float_side", "without a gradient to the quantized outputs"),
        ("L1", "has the scope 'pertensor'"),
    ],
)
def test_a_metric_that_has_no_gradient_is_refused(loss: str, message: str) -> None:
    model, x = calibrated(Block(), torch.rand(2, 3, 8, 8)), torch.rand(2, 3, 8, 8)
    before = fingerprint(model)
    with pytest.raises(AnalysisError, match=message):
        table_of(model, x, loss)
    assert_same(before, model)


def test_what_never_saw_data_is_named() -> None:
    model = prepare(Block().eval(), torch.rand(1, 3, 8, 8))
    set_fake_quantize(model.eval(), FakeQuantState.VALIDATION)
    with pytest.raises(NotCalibratedError, match=r"stem\.0"):
        table_of(model, torch.rand(1, 3, 8, 8))


def settled(model: nn.Module) -> dict[str, Any]:
    flags = {name: p.requires_grad for name, p in model.named_parameters()}
    attributes = {name: set(vars(m)) for name, m in model.named_modules()}
    return {"flags": flags, "attributes": attributes, "grad": torch.is_grad_enabled()}


@pytest.mark.parametrize("loss", ["mse_loss", "stops"])
def test_everything_is_restored(loss: str) -> None:
    model = calibrated(Block(), torch.rand(2, 3, 8, 8))
    set_fake_quantize(next(m for m in model.modules() if isinstance(m, QATOp)), FakeQuantState.QAT)
    for i, parameter in enumerate(model.parameters()):
        parameter.grad = torch.ones_like(parameter)
        parameter.requires_grad_(i % 2 == 0)
    x = torch.rand(2, 3, 8, 8, requires_grad=True)
    before = fingerprint(model), settled(model)
    if loss == "stops":
        with pytest.raises(KeyboardInterrupt):
            table_of(model, x, loss)
    else:
        with torch.inference_mode():
            assert len(table_of(model, x, loss))
    assert_same(before[0], model)
    assert settled(model) == before[1]
    assert x.grad is None


def test_ctrl_c_in_any_operator_leaves_the_model_alone() -> None:
    model, x = calibrated(Block(), torch.rand(2, 3, 8, 8)), torch.rand(2, 3, 8, 8)
    before = fingerprint(model), settled(model)
    for op in [m for m in model.modules() if isinstance(m, QATOp)]:
        for call in (1, 2):
            calls: list[int] = []

            def hook(*_: Any, calls: list[int] = calls, call: int = call) -> None:
                calls.append(1)
                if len(calls) == call:
                    raise KeyboardInterrupt

            handle = op.register_forward_hook(hook)
            with pytest.raises(KeyboardInterrupt):
                table_of(model, x)
            handle.remove()
    assert_same(before[0], model)
    assert settled(model) == before[1]


def test_frozen_parameters_and_in_place_fake_quantizes_give_the_same_numbers() -> None:
    data = torch.rand(2, 3, 8, 8)
    model = calibrated(Block(), data)
    expected = scores(table_of(model, data))
    model.requires_grad_(False)
    for quantizer in model.modules():
        if isinstance(quantizer, FakeQuantize) and "weight" not in quantizer.name:
            quantizer.in_place = True
    copy = data.clone()
    assert scores(table_of(model, data)) == expected
    assert torch.equal(data, copy)


def test_quant_analysis_writes_the_tables_of_v2(tmp_path: Path) -> None:
    net, data = Block().eval(), [torch.rand(2, 3, 8, 8) for _ in range(3)]
    qa = QuantAnalysis(
        net,
        calibrated(net, *data),
        "fake_quant",
        out_dir=str(tmp_path),
        metric_list=["mse_loss"],
        post_process=lambda y: y * 2,
    )
    qa.auto_find_bad_case(data, topk=2)
    options: Any = {"use_sensitivity_v2": True, "sensitivity_method": "grad_x_error"}
    tables = qa.sensitivity("mse_loss", **options)
    assert list(tables) == ["all"]
    assert len(tables["all"]) == 2
    case = tables["all"][0].case
    for middle in (case, "mean", "worst"):
        for suffix in ("txt", "csv", "pt"):
            assert (tmp_path / f"output_all_case_{middle}_sensitive_ops.{suffix}").exists()
    mean = torch.load(tmp_path / "output_all_case_mean_sensitive_ops.pt")
    assert mean.column(SCORE) == sorted(mean.column(SCORE), reverse=True)
    html = (tmp_path / "sensitivity_v2_report.html").read_text()
    assert all(column in html for column in COLUMNS)
    with pytest.raises(AnalysisError, match="pass use_sensitivity_v2=True"):
        qa.sensitivity("mse_loss", sensitivity_method="grad_x_error")
    with pytest.raises(AnalysisError, match="no method 'gradient'; expected one of: 'ablation'"):
        qa.sensitivity("mse_loss", use_sensitivity_v2=True, sensitivity_method="gradient")

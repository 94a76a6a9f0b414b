"""float16 on nash-p, nash-h and nash-b: FakeCast, casts in HBIR, borders to integers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune import march as marches
from qtune.bpu import compiler
from qtune.bpu.convert import advice_items, convert
from qtune.bpu.ort import run_in_onnxruntime
from qtune.dtype import qint8, qint16
from qtune.errors import MarchError
from qtune.hbir.module import HbirModule
from qtune.nn.prepared import PreparedModel
from qtune.nn.qat import iter_ports
from qtune.prepare.rundir import dtypes_of
from qtune.quantization import (
    FakeCast,
    FakeQuantState,
    QconfigSetter,
    get_qconfig,
    prepare,
    set_fake_quantize,
)
from qtune.quantization.hbdk4 import export, pre_export
from qtune.quantization.qconfig_setter import (
    ConvDtypeTemplate,
    MatmulDtypeTemplate,
    ModuleNameTemplate,
)

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
FLOAT16 = ["nash-p", "nash-h", "nash-b"]


class Net(nn.Module):
    """GEMMs, a fused relu, arithmetic, a clamp whose bounds lie off the grid, movement."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.pool, self.head = nn.MaxPool2d(2), nn.Linear(128, 4)

    def forward(self, x: Tensor) -> Tensor:
        a = torch.relu(self.first(x))
        y = self.pool(a + self.second(a) * 0.37)
        y = torch.cat([y[:, :4].clamp(-0.3, 1.7), y[:, 4:]], 1)
        result: Tensor = self.head(y.flatten(1))
        return result


class Function(nn.Module):
    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def setter(mapping: dict[str, Any] | None = None, **conv: Any) -> QconfigSetter:
    names = ModuleNameTemplate({"": torch.float16} if mapping is None else mapping)
    return QconfigSetter(get_qconfig(), [names, ConvDtypeTemplate(**conv), MatmulDtypeTemplate()])


def calibrated(
    model: nn.Module, march: str = "nash-p", rules: QconfigSetter | None = None
) -> PreparedModel:
    with marches.march(march):
        prepared = prepare(model.eval(), X, rules or setter()).eval()
    set_fake_quantize(prepared, FakeQuantState.CALIBRATION)
    prepared(X)
    set_fake_quantize(prepared, FakeQuantState.VALIDATION)
    return prepared


def half(x: Tensor) -> Tensor:
    return x.half().float()


def given(prepared: PreparedModel) -> dict[tuple[str, str], str]:
    return {(d.name, d.port): d.given for d in prepared.resolution.explanation}


def borders(module: HbirModule) -> list[tuple[str, str]]:
    notes = [note for note in module.report if note["kind"] == "float16 border"]
    return [(note["op"], note["message"]) for note in notes]


@pytest.mark.parametrize("march", FLOAT16)
def test_all_stages_agree_bit_for_bit(march: str) -> None:
    prepared = calibrated(Net(), march)
    qat = export(prepared, X)
    assert torch.equal(qat[0](X), prepared(X))
    module = convert(qat, march)
    fast = module[0](X)
    assert torch.equal(fast, module[0].run({"_input_0": X}, "reference")["_output_0"])
    assert torch.equal(run_in_onnxruntime(module, X), fast)
    # A bias is rounded to steps of the accumulator; near a tie of float16 that moves a code of the
    # head's input by one, for at most two of its 128 here.
    head = prepared.get_submodule("head")
    step = float(head.input_fake_quants["0"].scale * head.weight.detach().abs().max())
    assert (fast - prepared(X)).abs().max() <= 2 * step


def test_elementwise_operators_round_once_to_float16() -> None:
    prepared = calibrated(Function(lambda x: torch.clamp(x * 0.37 + x, -0.3, 0.7)))
    x = half(X)
    expected = half(torch.clamp(half(half(x * 0.37) + x), -0.3, 0.7))
    assert torch.equal(prepared(X), expected)
    module = convert(export(prepared, X), "nash-p")
    assert torch.equal(module[0](X), expected)
    assert not any(node.domain == "qtune" for node in module.model.graph), "no scale anywhere"


@pytest.mark.parametrize(
    "function", [torch.sigmoid, F.silu, torch.exp, lambda x: F.softmax(x, 1), lambda x: x.mean(1)]
)
def test_functions_are_computed_and_not_looked_up(function: Any) -> None:
    prepared = calibrated(Function(function))
    exported = pre_export(prepared)
    assert [type(op) for _, op in exported.operators()] == [
        type(op) for _, op in prepared.operators()
    ]
    module = convert(export(prepared, X), "nash-p")
    assert torch.equal(module[0](X), prepared(X))
    exact = function(X.double())
    # input, result and at most four steps inside a softmax are rounded to 11 bits
    assert torch.allclose(module[0](X).double(), exact, rtol=6 * 2**-11, atol=2**-10)
    # ONNX Runtime's float functions may differ in the last bit, one step of float16 after rounding
    by_ort = run_in_onnxruntime(module, X)
    assert torch.allclose(by_ort, module[0](X), rtol=2**-10, atol=2**-24)


def test_a_gemm_gives_its_exact_sum_in_float16() -> None:
    prepared = calibrated(nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.AvgPool2d(2)))
    linear = prepared.get_submodule("0")
    scale_x = float(linear.input_fake_quants["0"].scale)
    scale_w = linear.weight_fake_quant.scale.double()
    x = torch.floor(half(X) / torch.tensor(scale_x) + 0.5).clamp(-128, 127).double()
    w = torch.floor(linear.weight.detach() / linear.weight_fake_quant.scale[:, None] + 0.5)
    bias = torch.floor(linear.bias.detach().double() / (scale_x * scale_w) + 0.5)
    acc = x @ w.clamp(-128, 127).double().T + bias
    expected = half(torch.relu((acc * scale_x * scale_w).float()))
    seen: dict[str, Tensor] = {}
    module = convert(export(prepared, X), "nash-p")
    module[0].run({"_input_0": X}, observe=lambda name, r: seen.__setitem__(name, r.values))
    assert torch.equal(seen["1"], expected)


def test_borders_to_integers_are_listed_both_ways() -> None:
    prepared = calibrated(Net())
    assert borders(convert(export(prepared, X), "nash-p")) == [
        ("first", "float16 becomes an integer before it"),
        ("_generated_relu_0", "its exact sum of integers leaves in float16"),
        ("second", "float16 becomes an integer before it"),
        ("second", "its exact sum of integers leaves in float16"),
        ("head", "float16 becomes an integer before it"),
    ]
    mixed = calibrated(
        Function(lambda x: torch.sigmoid(x) * 2),
        rules=setter({"": qint8, "_generated_mul_0": torch.float16}),
    )
    module = convert(export(mixed, X), "nash-p")
    assert borders(module) == [("_generated_mul_0", "qint8 becomes float16 before it")]
    assert module.report[0]["kind"] == "float16 border"


def test_an_integer_operator_behind_float16_quantizes_its_input() -> None:
    names = {"": torch.float16, "_generated_add_0": qint16}
    prepared = calibrated(Function(lambda x: torch.exp(x) + x), rules=setter(names))
    dtypes = given(prepared)
    assert (
        dtypes["_generated_add_0", "input-0"] == dtypes["_generated_add_0", "input-1"] == "qint16"
    )
    assert dtypes["_generated_exp_0", "output"] == "torch.float16"
    module = convert(export(prepared, X), "nash-p")
    assert "QAdd" in [node.op_type for node in module.model.graph]
    scale = float(prepared.get_submodule("_generated_add_0").activation_post_process.scale)
    assert (module[0](X) - prepared(X)).abs().max() <= 2 * scale  # an int16 add: two steps


def test_operators_of_int8_data_get_a_grid_of_their_own() -> None:
    prepared = calibrated(Function(lambda x: F.interpolate(torch.exp(x), scale_factor=2) + 1))
    dtypes = given(prepared)
    assert dtypes["_generated_interpolate_0", "input-0"] == "qint8"
    assert dtypes["_generated_add_0", "output"] == "torch.float16"
    (line,) = prepared.resolution.corrections
    assert line.reason == "nash-p takes qint8 as input of interpolate"
    module = convert(export(prepared, X), "nash-p")
    kinds = [kind for _, kind in borders(module)]
    assert kinds == ["float16 becomes an integer before it", "qint8 becomes float16 before it"]


def test_an_addend_of_a_fused_gemm_is_an_integer() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 1)

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(self.conv(x) + torch.exp(x)) * 2

    prepared = calibrated(Residual())
    assert given(prepared)["_generated_add_0", "input-1"] == "qint16"
    module = convert(export(prepared, X), "nash-p")
    assert "QConvAddAcc" in [node.op_type for node in module.model.graph]
    # one step of float16 at values up to 16, where accumulator and float sum fall apart
    assert (module[0](X) - prepared(X)).abs().max() <= 2**-5


def test_two_int16_operands_have_no_float16_result() -> None:
    rules = setter(input_dtype=qint16, weight_dtype=qint16)
    prepared = calibrated(nn.Sequential(nn.Conv2d(3, 3, 1), nn.Sigmoid()), rules=rules)
    decision = next(d for d in prepared.resolution.corrections if d.port == "output")
    assert (decision.name, decision.given) == ("0", "qint16")
    assert "two int16 operands have no high-precision output" in decision.reason
    assert convert(export(prepared, X), "nash-p").march == "nash-p"


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("march", ["nash-e", "nash-m", "bayes-e", "bernoulli2"])
def test_other_marches_refuse_float16_by_operator_with_a_remedy(march: str, hybrid: bool) -> None:
    names = {"": qint8, "_generated_add_0": torch.float16, "_generated_mul_0": "float16"}
    with marches.march(march), pytest.raises(MarchError) as caught:
        prepare(Function(lambda x: (x + x) * x), X, setter(names), hybrid=hybrid)
    text = str(caught.value)
    assert "_generated_add_0 (add): output is float16 by ModuleNameTemplate" in text
    assert "_generated_mul_0 (mul): output is float16" in text
    assert (
        f"{march} does not compute in float16; set qint16 or qint8 there, or choose nash-p" in text
    )


def test_qconfigs_with_a_fake_cast_are_configurations_too() -> None:
    model = Function(lambda x: torch.exp(x) + x)
    model.qconfig = get_qconfig(out_dtype=torch.float16)
    prepared = calibrated(model, rules=setter({"": qint8}))
    casts = {name for name, _, port in iter_ports(prepared) if isinstance(port, FakeCast)}
    assert casts == {"_input_0_quant", "_generated_exp_0", "_generated_add_0"}
    assert dtypes_of(prepared)["_generated_exp_0"]["output"] == "torch.float16"


def test_a_fixed_scale_is_for_integers() -> None:
    from qtune.quantization import QuantStub

    model = nn.Sequential(QuantStub(scale=1 / 128), nn.Sigmoid())
    prepared = calibrated(model)
    decision = next(d for d in prepared.resolution.explanation if d.name == "0")
    assert decision.given == "qint16"
    assert "a fixed scale is for integers" in decision.reason


class Attention(nn.Module):
    """Composed operators: layer norm, attention with its softmax, a table function, additions."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(8), nn.Linear(8, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x.flatten(1, 2))
        y = y + self.attention(y, y, y)[0]
        return y * F.gelu(self.linear(y))


def test_composed_operators_are_in_float16_inside() -> None:
    model = Attention().eval()
    prepared = calibrated(model)
    inside = [d for d in prepared.resolution.explanation if "_norm" in d.name or "norm." in d.name]
    assert {d.given for d in inside if d.port == "output"} == {"torch.float16"}
    module = convert(export(prepared, X), "nash-p")
    assert not [note for note in module.report if note["kind"] == "stays float"]
    fast = module[0](X)
    assert torch.equal(fast, module[0].run({"_input_0": X}, "reference")["_output_0"])
    # int8 operands of five GEMMs: 1 % of a range of about 4, and float16 is far below that
    assert (fast - model(X)).abs().max() <= 0.04


def test_advice_says_that_float16_runs_on_the_bpu() -> None:
    items = advice_items(convert(export(calibrated(Net()), X), "nash-p"))
    assert {item["backend"] for item in items} == {"bpu", "vpu"}
    (pool,) = [item for item in items if item["op"] == "onnx::MaxPool"]
    assert pool["choice_reason"] == "float16 in the vector unit"


def test_saved_and_compiled_modules_give_the_same_bits(tmp_path: Path) -> None:
    prepared = calibrated(Net())
    module = convert(export(prepared, X), "nash-p")
    compiler.save(module, tmp_path / "net.bc")
    with marches.march("nash-p"):
        assert torch.equal(compiler.load(tmp_path / "net.bc")[0](X), module[0](X))
        compiler.compile(module, tmp_path / "net.hbm", "nash-p")
        hbm = compiler.Hbm(tmp_path / "net.hbm")
    np.testing.assert_array_equal(
        hbm[0].feed({"_input_0": X.numpy()})["_output_0"], module[0](X).numpy()
    )


def test_training_passes_gradients_through_the_casts() -> None:
    with marches.march("nash-p"):
        prepared = prepare(Net(), X, setter())
    set_fake_quantize(prepared.train(), FakeQuantState.QAT)
    prepared(X).square().sum().backward()
    for name in ("first", "second", "head"):
        assert bool(prepared.get_submodule(name).weight.grad.abs().sum() > 0), name
    set_fake_quantize(prepared.eval(), FakeQuantState._FLOAT)
    assert all(port.state is FakeQuantState._FLOAT for _, _, port in iter_ports(prepared))


class Shared(nn.Module):
    """A linear layer and a table, each called on the results of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.both = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.table = nn.Sigmoid()

    def forward(self, x: Tensor) -> Tensor:
        u, v = self.a(x), self.b(x)
        return torch.cat([self.table(u) * self.table(v), self.both(u) + self.both(v)], 1)


@pytest.mark.parametrize(
    "mapping",
    [
        {"": qint8, "a": torch.float16},
        {"": qint8, "b": torch.float16},
        {"": torch.float16, "a": qint16},
        {"": qint8, "b": torch.float32},
        {"": torch.float16, "b": torch.float32},
    ],
)
def test_calls_of_a_shared_operator_may_differ_in_dtype(mapping: dict[str, Any]) -> None:
    prepared = calibrated(Shared(), "nash-h", setter(mapping))
    module = convert(export(prepared, X), "nash-h")
    fast = module[0](X)
    assert torch.equal(fast, module[0].run({"_input_0": X}, "reference")["_output_0"])
    assert torch.equal(run_in_onnxruntime(module, X), fast)
    both = prepared.get_submodule("both").input_fake_quants["0"]
    assert both.dtype == qint8, "one grid for both calls of the GEMM"
    # float16 of the table's int8 steps, and one tie of the layers' steps of 1 / 127 of the largest.
    assert (fast - prepared(X)).abs().max() <= 2 / 127 * fast.abs().max()

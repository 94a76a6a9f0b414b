"""embedding: the table is quantized with one scale, its codes move."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qtune
from qtune.arith.quantize import quantize, scale_from_absmax
from qtune.bpu.convert import convert
from qtune.bpu.ort import run_in_onnxruntime
from qtune.dtype import QuantDType, qint8, qint16
from qtune.hbir.module import HbirModule
from qtune.nn.prepared import PreparedModel
from qtune.quantization import (
    FakeQuantState,
    QconfigSetter,
    QuantStub,
    get_qconfig,
    prepare,
    set_fake_quantize,
)
from qtune.quantization.hbdk4 import export
from qtune.quantization.qconfig_setter import ModuleNameTemplate

IDS = torch.tensor([[3, 0, 6], [6, 6, 1]])


@pytest.fixture(autouse=True)
def _nash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("QTUNE_RUN_DIR", str(tmp_path / "run"))
    torch.manual_seed(0)
    with qtune.march.march("nash-e"):
        yield


class Layer(nn.Module):
    """The module, with options that change nothing at inference."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(7, 5, padding_idx=0, scale_grad_by_freq=True)

    def forward(self, ids: Tensor) -> Tensor:
        return self.emb(ids)

    @property
    def weight(self) -> Tensor:
        return self.emb.weight


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(7, 5))

    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.weight)


class Raw(Functional):
    def forward(self, ids: Tensor) -> Tensor:
        return torch.embedding(self.weight, ids)


class Scaled(nn.Embedding):
    """A subclass with a forward of its own."""

    def forward(self, input: Tensor) -> Tensor:
        return F.embedding(input, self.weight) * 2.0


class Tied(nn.Module):
    """Rows and class weights are one parameter, each with a grid of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(7, 5)

    def forward(self, ids: Tensor) -> Tensor:
        return F.linear(F.relu(self.emb(ids)), self.emb.weight)


def calibrated(model: nn.Module, data: Any = IDS, dtype: QuantDType = qint8) -> PreparedModel:
    setter = QconfigSetter(get_qconfig(), [ModuleNameTemplate({"": dtype})])
    prepared = prepare(model.eval(), data, setter).eval()
    inputs = data if isinstance(data, tuple) else (data,)
    set_fake_quantize(prepared, FakeQuantState.CALIBRATION)
    prepared(*inputs)
    set_fake_quantize(prepared, FakeQuantState.VALIDATION)
    return prepared


def run_everywhere(module: HbirModule, feed: dict[str, Tensor]) -> Tensor:
    """The one result of the integer module, equal on every path."""
    fast, exact = module[0].run(feed), module[0].run(feed, "reference")
    by_ort = run_in_onnxruntime(module, {key: x.numpy() for key, x in feed.items()})
    ((name, result),) = fast.items()
    assert torch.equal(result, exact[name])
    np.testing.assert_array_equal(result.numpy(), by_ort[name])
    return result


@pytest.mark.parametrize("dtype", [qint8, qint16], ids=str)
@pytest.mark.parametrize("kind", [Layer, Functional, Raw])
def test_result_holds_the_codes_of_the_quantized_table(kind: Any, dtype: QuantDType) -> None:
    model = kind()
    with qtune.march.march("bayes"):  # nash gathers int8 rows only
        prepared = calibrated(model, dtype=dtype)
    assert prepared.float_ops == ()
    weight = model.weight.detach().numpy()
    scale = scale_from_absmax(np.abs(weight).max(), dtype)  # the whole table, not the rows used
    expected = (quantize(weight, scale, dtype)[IDS.numpy()] * scale).astype(np.float32)
    np.testing.assert_array_equal(prepared(IDS).detach().numpy(), expected)

    module = convert(export(prepared, IDS), "bayes")
    assert [n.op_type for n in module.model.graph] == ["Gather", "Dequantize"]
    np.testing.assert_array_equal(run_everywhere(module, {"_input_0": IDS}).numpy(), expected)


def test_nash_gathers_int8_rows_only() -> None:
    prepared = calibrated(Layer(), dtype=qint16)
    (correction,) = prepared.resolution.corrections
    assert (correction.port, correction.given) == ("input-0", "qint8")
    assert correction.reason == "nash-e takes qint8 as input of embedding"


def test_other_indices_and_batch_sizes_run() -> None:
    model = Layer()
    module = convert(export(calibrated(model), IDS))
    ids = torch.arange(7).repeat(4)[:24].reshape(8, 3)
    result = run_everywhere(module, {"_input_0": ids})
    step = float(scale_from_absmax(model.weight.detach().abs().max().numpy(), qint8))
    # Rounding is at most half a step; the rest is float32's.
    assert (result - model(ids)).abs().max() <= step * (0.5 + 1e-5)


def test_subclass_with_its_own_forward_is_quantized() -> None:
    prepared = calibrated(Scaled(7, 5))
    assert prepared.float_ops == ()
    module = convert(export(prepared, IDS))
    op_types = [node.op_type for node in module.model.graph]
    assert op_types == ["Gather", "Requantize", "Dequantize"]
    run_everywhere(module, {"_input_0": IDS})


def test_table_tied_to_a_linear_layer_stays_tied_and_has_its_own_scale() -> None:
    prepared = calibrated(Tied())
    emb = prepared.get_submodule("emb")
    linear = prepared.get_submodule("_generated_linear_0")
    assert emb.input_fake_quants["0"].scale.shape == (1,)
    assert linear.weight_fake_quant.scale.shape == (7,)
    module = convert(export(prepared, IDS))
    assert any(node.op_type.startswith("QLinear") for node in module.model.graph)
    result = run_everywhere(module, {"_input_0": IDS})
    # The same integers on both sides; the fake-quant product is summed in float32.
    assert torch.allclose(result, prepared(IDS), rtol=1e-5, atol=1e-6)


def test_float_state_and_gradient_are_those_of_torch() -> None:
    model = Layer()
    prepared = prepare(model.train(), IDS)
    set_fake_quantize(prepared, FakeQuantState._FLOAT)
    assert torch.equal(prepared(IDS), model(IDS))
    for net in (model, prepared):
        net.zero_grad()
        net(IDS).square().sum().backward()
    own = prepared.get_submodule("emb").weight.grad
    assert torch.equal(own, model.emb.weight.grad)
    assert not own[0].any()  # padding_idx
    assert own[3].any()


def test_training_moves_the_table_through_the_fake_quantize() -> None:
    prepared = prepare(nn.Sequential(nn.Embedding(7, 5, sparse=True)).train(), IDS)
    prepared(IDS).sum().backward()
    grad = prepared.get_submodule("0").weight.grad
    assert grad.is_sparse
    assert grad.to_dense()[6].tolist() == [3.0] * 5


def test_max_norm_stays_float_with_the_reason() -> None:
    prepared = prepare(nn.Sequential(nn.Embedding(7, 5, max_norm=1.0), nn.ReLU()).eval(), IDS)
    reasons = {item.name: item.reason for item in prepared.float_ops}
    assert "max_norm=1.0" in reasons["0"]
    assert "pass max_norm=None" in reasons["0"]


def test_table_before_the_first_stub_stays_float() -> None:
    model = nn.Sequential(nn.Embedding(7, 5), QuantStub(), nn.ReLU())
    prepared = calibrated(model)
    assert [item.name for item in prepared.float_ops] == ["0"]
    run_everywhere(convert(export(prepared, IDS)), {"_input_0": IDS})


def test_index_past_the_table_is_an_error() -> None:
    module = convert(export(calibrated(Layer()), IDS))
    with pytest.raises(qtune.errors.RunError, match="Gather"):
        module[0](torch.full((2, 3), 7))


def test_march_limits_are_those_of_a_gather() -> None:
    with pytest.raises(qtune.errors.MarchError, match=r"0 \(embedding\): a table of 65537 x 1,"):
        prepare(nn.Sequential(nn.Embedding(65537, 1)), IDS)
    with (
        qtune.march.march("bernoulli2"),
        pytest.raises(qtune.errors.MarchError, match="has no embedding"),
    ):
        prepare(nn.Sequential(nn.Embedding(7, 1)), IDS)

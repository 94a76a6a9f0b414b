"""A16: bool masks and integer tensors through every stage, without observers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import qtune
from qtune.bpu.convert import convert
from qtune.bpu.ort import run_in_onnxruntime
from qtune.dtype import QuantDType, qint8, qint16
from qtune.hbir.module import HbirModule
from qtune.hbir.serialize import load
from qtune.nn.prepared import PreparedModel
from qtune.nn.qat import iter_stubs
from qtune.quantization import (
    FakeQuantState,
    QconfigSetter,
    get_qconfig,
    prepare,
    set_fake_quantize,
)
from qtune.quantization.hbdk4 import export, pre_export
from qtune.quantization.qconfig_setter import ModuleNameTemplate

STATES = (
    FakeQuantState._FLOAT,
    FakeQuantState.QAT,
    FakeQuantState.CALIBRATION,
    FakeQuantState.VALIDATION,
)


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(10, 4)

    def forward(self, ids: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        e = self.emb(ids)
        m = x > 0
        return torch.where(m, e, x.masked_fill(m, 0.0)), ids + 1


@pytest.fixture(autouse=True)
def _nash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("QTUNE_RUN_DIR", str(tmp_path / "run"))
    torch.manual_seed(0)
    with qtune.march.march("nash-e"):
        yield


def inputs() -> tuple[Tensor, Tensor]:
    return torch.randint(0, 10, (2, 3)), torch.randn(2, 3, 4)


def prepared_model(model: nn.Module, dtype: QuantDType) -> PreparedModel:
    setter = QconfigSetter(get_qconfig(), [ModuleNameTemplate({"": dtype})])
    return prepare(model, inputs(), setter).eval()


def calibrated_model(model: nn.Module, dtype: QuantDType) -> PreparedModel:
    prepared = prepared_model(model, dtype)
    set_fake_quantize(prepared, FakeQuantState.CALIBRATION)
    for _ in range(3):
        prepared(*inputs())
    set_fake_quantize(prepared, FakeQuantState.VALIDATION)
    return prepared


def assert_integers(second: Tensor, ids: Tensor) -> None:
    assert second.dtype is torch.int64
    assert torch.equal(second, ids + 1)


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.name)
def test_every_state_runs_and_keeps_the_integer_output(state: FakeQuantState) -> None:
    """A16"""
    model = Masked().eval()
    prepared = calibrated_model(model, qint8)
    set_fake_quantize(prepared, state)
    ids, x = inputs()
    first, second = prepared(ids, x)
    assert_integers(second, ids)
    if state in (FakeQuantState._FLOAT, FakeQuantState.CALIBRATION):
        assert torch.equal(first, model(ids, x)[0])


def test_no_fake_quantize_on_a_mask_or_an_index() -> None:
    """A16"""
    prepared = prepared_model(Masked().eval(), qint8)
    assert {(name, kind) for name, kind, _ in iter_stubs(prepared)} == {
        ("emb", "input-0"),
        ("_input_1_quant", "output"),
        ("_generated_masked_fill_0", "output"),
        ("_generated_where_0", "output"),
    }
    assert prepared.float_ops == ()


def feed_of(module: HbirModule, tensors: tuple[Tensor, ...]) -> dict[str, Tensor]:
    return {item.name: x for item, x in zip(module[0].inputs, tensors, strict=True)}


@pytest.mark.parametrize("dtype", [qint8, qint16], ids=str)
def test_exported_and_converted_model_give_the_integers_and_the_masked_numbers(
    dtype: QuantDType, tmp_path: Path
) -> None:
    """A16"""
    prepared = calibrated_model(Masked().eval(), dtype)
    example, data = inputs(), inputs()
    with torch.no_grad():
        first, _ = prepared(*data)
    assert torch.equal(pre_export(prepared)(*data)[0], first)

    qat = export(prepared, example)
    exported = qat[0](*data)
    assert torch.equal(exported[0], first)
    assert_integers(exported[1], data[0])

    quantized = convert(qat)
    quantized.save(tmp_path / "quantized.bc")
    loaded = load(tmp_path / "quantized.bc")
    integer = loaded[0](*data)
    assert_integers(integer[1], data[0])
    # The mask is decided on the same codes; two selections over a common shift, a step each.
    step = float(prepared.get_submodule("_generated_where_0").activation_post_process.scale)
    assert (integer[0] - first).abs().max() <= 2 * step * (1 + 1e-3)


@pytest.mark.parametrize("dtype", [qint8, qint16], ids=str)
def test_reference_fast_and_onnx_runtime_agree(dtype: QuantDType) -> None:
    """A16"""
    prepared = calibrated_model(Masked().eval(), dtype)
    quantized = convert(export(prepared, inputs()))
    feed = feed_of(quantized, inputs())
    fast, exact = quantized[0].run(feed), quantized[0].run(feed, "reference")
    by_ort = run_in_onnxruntime(quantized, {key: x.numpy() for key, x in feed.items()})
    for name, value in fast.items():
        assert torch.equal(value, exact[name])
        np.testing.assert_array_equal(value.numpy(), by_ort[name])
    op_types = {node.op_type for node in quantized.model.graph}
    assert {"Gather", "QGreater", "QWhere", "Add"} <= op_types

"""convert: integers only, every violation named, everything that stays float reported."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from qtune.bpu.compiler import convert
from qtune.dtype import qint16
from qtune.errors import ArgumentError, ConvertError, MarchError
from qtune.hbir.builder import META_FLOPS, META_OP
from qtune.hbir.export import export
from qtune.hbir.module import HbirModule
from qtune.hbir.verify import is_codes
from qtune.march import march
from tests.hbir.prepared import Prepared, small_cnn

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
V = torch.randn(2, 4, generator=torch.Generator().manual_seed(2))


def exported(p: Prepared, *tensors: torch.Tensor) -> HbirModule:
    return export(p.calibrated(*tensors), tuple(tensors))


def node_of(module: HbirModule, op: str) -> object:
    (node,) = [n for n in module.model.graph if n.metadata_props.get(META_OP) == op]
    return node


def test_everything_between_the_stubs_is_integer():
    module = convert(export(small_cnn(X), X), "nash-e")

    assert module.stage == "quantized"
    assert module.march == "nash-e"
    assert module.report == ()
    inside = ["relu1", "conv2", "add1", "pool", "flat"]
    assert all(is_codes(node_of(module, name).outputs[0]) for name in inside)


def test_integers_follow_the_fake_quantized_model():
    qat = export(small_cnn(X), X)
    module = convert(qat, "nash-e")
    seen, expected = {}, {}
    qat[0].run({"_input_0": X}, observe=expected.__setitem__)
    module[0].run({"_input_0": X}, observe=seen.__setitem__)

    for name, result in seen.items():
        if result.scale is None:
            continue
        distance = (result.values - expected[name].values).abs().max() / result.scale
        # one rounding at each of the operators in a row, at most 4 in this model
        assert distance <= 4, name
        assert result.dtype == expected[name].dtype == "qint8"
        assert result.scale == expected[name].scale


def test_fused_group_is_one_operator_under_the_name_of_its_last_member():
    module = convert(export(small_cnn(X), X), "nash-e")

    assert "conv1" not in module[0].operator_names()
    assert module[0].groups()["conv1"] == "relu1"
    assert int(node_of(module, "relu1").metadata_props[META_FLOPS]) >= 2 * 8 * 64 * 27 // 2


def test_source_module_stays_as_it_is():
    qat = export(small_cnn(X), X)
    before = qat.to_bytes()
    convert(qat, "nash-e")

    assert qat.to_bytes() == before


def test_march_that_is_set_is_the_default():
    qat = export(small_cnn(X), X)
    with march("nash-m"):
        assert convert(qat).march == "nash-m"


def test_unknown_march_option_and_stage_are_refused():
    qat = export(small_cnn(X), X)
    with pytest.raises(MarchError, match="unknown march"):
        convert(qat, "nash-x")
    with pytest.raises(ArgumentError, match="no option fast"):
        convert(qat, "nash-e", fast=True)
    with pytest.raises(ConvertError, match="stage 'qat'"):
        convert(convert(qat, "nash-e"), "nash-e")
    with pytest.raises(ArgumentError, match="takes an HbirModule, got Linear"):
        convert(nn.Linear(1, 1), "nash-e")


def float_between() -> Prepared:
    """Two operators without output scale between quantized ones."""
    p = Prepared()
    q = p.quantized_input()
    for name in ("one", "two"):
        e = p.function("exp", q, name=f"exp_{name}", out=None)
        q = p.function("add", e, e, name=f"add_{name}", alpha=1)
    return p.outputs(p.dequantized(q, "d"))


def test_float_operators_between_quantized_ones_are_all_named():
    with pytest.raises(ConvertError) as error:
        convert(exported(float_between(), V), "nash-e")

    text = str(error.value)
    assert "exp_one" in text
    assert "exp_two" in text
    assert "DeQuantStub" in text


def test_operators_between_stubs_of_the_user_may_be_float():
    p = Prepared()
    d = p.dequantized(p.quantized_input(), "d")
    e = p.function("exp", d, name="exp", out=None)
    q = p.function("quant_stub", e, name="q", scale=None)
    p.outputs(p.dequantized(p.function("add", q, q, name="add", alpha=1), "d2"))
    module = convert(exported(p, V), "nash-e")

    (note,) = module.report
    assert (note["op"], note["kind"]) == ("exp", "stays float")
    assert "outside the quantized region" in note["message"]


def test_float_operator_at_the_end_is_reported_with_the_reason(caplog):
    p = Prepared()
    q = p.quantized_input()
    e = p.function("exp", q, name="exp", out=None)
    p.outputs(e)
    module = convert(exported(p, V), "nash-e")

    (note,) = module.report
    assert note["op"] == "exp"
    assert "no output scale" in note["message"]
    assert "exp: stays float" in caplog.text


def test_march_limits_are_named_with_operator_and_remedy():
    p = Prepared()
    q = p.quantized_input()
    p.outputs(p.dequantized(p.function("add", q, q, name="wide", out=qint16, alpha=1), "d"))

    with pytest.raises(ConvertError, match=r"bernoulli2(?s:.*)wide.*qint8, got qint16"):
        convert(exported(p, V), "bernoulli2")


def test_too_many_dimensions_for_the_march():
    p = Prepared()
    q = p.quantized_input()
    p.outputs(p.dequantized(p.function("add", q, q, name="add", alpha=1), "d"))

    with pytest.raises(ConvertError, match="4 dimensions, got 5"):
        convert(exported(p, torch.randn(1, 2, 2, 2, 2)), "bernoulli2")


def test_advice_is_written_as_records(tmp_path):
    convert(export(small_cnn(X), X), "nash-e", advice_path=str(tmp_path / "advice.json"))
    items = json.loads((tmp_path / "advice.json").read_text())

    assert {item["backend"] for item in items} == {"bpu", "vpu"}
    assert [item["op"] for item in items if item["backend"] == "vpu"] == [
        "qtune::Quantize",
        "qtune::DequantizeAcc",
    ]
    assert set(items[0]) == {"backend", "choice_reason", "loc", "op", "tensor_names"}


@pytest.mark.parametrize("value", ["x", 1, None, 0.1])
def test_advice_that_is_no_flag_is_refused(value):
    with pytest.raises(ArgumentError, match="advice must be True or False, got .*advice_path"):
        convert(export(small_cnn(X), X), "nash-e", advice=value)


def test_bias_that_does_not_fit_is_reported_with_the_layer():
    """Case A02."""
    conv = nn.Conv2d(1, 1, 1)
    conv.weight.data.fill_(1.275e-6)
    conv.bias.data.fill_(3.0)
    x = torch.full((1, 1, 2, 2), 12.75)
    p = Prepared()
    p.outputs(p.dequantized(p.module(conv, p.quantized_input(), name="conv"), "d"))
    module = convert(exported(p, x), "nash-e")

    assert [note["op"] for note in module.report] == ["conv"]
    assert "bias" in module.report[0]["message"]
    # one step of the output grid: 2 * 3 / 255
    assert (module[0](x) - 3.0000163).abs().max() <= 0.0236

"""Advice: each violation with operator, reason and remedy; written also where convert refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from qtune.bpu.convert import advice_items, convert
from qtune.dtype import QuantDType, qint8, qint16
from qtune.errors import ConvertError
from qtune.hbir.export import export
from tests.hbir.prepared import Prepared, small_cnn

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
KEYS = {"backend", "choice_reason", "loc", "op", "tensor_names"}


def chain(dtype: QuantDType) -> Prepared:
    """Two convolutions, a function and a linear layer, one after the other."""
    torch.manual_seed(0)
    p = Prepared()
    q = p.module(torch.ao.quantization.QuantStub(), p.input(), name="q", out=dtype)
    a = p.module(nn.Conv2d(3, 4, 3), q, name="first", out=dtype)
    b = p.module(nn.Conv2d(4, 4, 3), a, name="second", out=dtype)
    e = p.function("erf", b, name="erf", out=dtype)
    f = p.function("flatten", e, name="flat", out=None, start_dim=1, end_dim=-1)
    fc = p.module(nn.Linear(64, 5), f, name="fc", out=dtype)
    return p.outputs(p.dequantized(fc, "d"))


def refused(p: Prepared, march: str, path: Path) -> tuple[list[str], list[dict[str, Any]]]:
    qat = export(p.calibrated(X), X)
    with pytest.raises(ConvertError) as caught:
        convert(qat, march, advice_path=str(path))
    lines = [line.removeprefix("  - ") for line in str(caught.value).splitlines()[1:]]
    return lines, json.loads(path.read_text())


def test_operators_behind_a_refused_gemm_are_listed_as_well(tmp_path: Path) -> None:
    lines, _ = refused(chain(qint16), "bernoulli2", tmp_path / "advice.json")
    named = [line.partition(":")[0] for line in lines]
    assert named == ["first", "second", "fc", "q", "erf", "flat", "flat", "fc", "d"]
    assert "erf does not run on bernoulli2; keep it outside the stubs" in lines[4]
    assert "linear does not run on bernoulli2" in lines[7]
    for line in lines[:3]:
        assert "qint16 x qint8 is not possible on bernoulli2" in line
        assert line.endswith("Set that operand to qint8")


def test_advice_of_a_refused_module_has_a_record_for_each_violation(tmp_path: Path) -> None:
    lines, items = refused(chain(qint8), "bernoulli2", tmp_path / "advice.json")
    assert all(set(item) == KEYS for item in items)
    broken = [item for item in items if item["backend"] == "external_cpu"]
    assert sorted(f"{i['loc']}: {i['choice_reason']}" for i in broken) == sorted(lines)
    assert [item["loc"] for item in broken] == ["erf", "fc"]
    on_bpu = [item["loc"] for item in items if item["backend"] == "bpu"]
    assert on_bpu == ["q", "first", "second", "flat", "d"]
    (erf,) = [item for item in items if item["loc"] == "erf"]
    assert (erf["op"], len(erf["tensor_names"])) == ("qtune::FakeQuant", 1)


def test_one_operator_may_break_several_limits() -> None:
    p = Prepared()
    q = p.module(torch.ao.quantization.QuantStub(), p.input(), name="q", out=qint16)
    p.outputs(p.dequantized(p.function("add", q, q, name="add", out=qint16, alpha=1), "d"))
    qat = export(p.calibrated(torch.randn(1, 2, 2, 2, 2)), torch.randn(1, 2, 2, 2, 2))
    with pytest.raises(ConvertError) as caught:
        convert(qat, "bernoulli2")
    about = [line for line in str(caught.value).splitlines() if line.startswith("  - add")]
    texts = ("inputs may be qint8, got qint16", "output may be qint8, got qint16", "4 dimensions")
    assert len(about) == 3
    assert all(text in line for text, line in zip(texts, about, strict=True))


def test_an_int16_depthwise_convolution_of_stride_4_is_refused_on_nash() -> None:
    p = Prepared()
    q = p.module(torch.ao.quantization.QuantStub(), p.input(), name="q", out=qint16)
    conv = nn.Conv2d(3, 3, 3, stride=4, groups=3)
    p.outputs(p.dequantized(p.module(conv, q, name="wide", out=qint8), "d"))
    qat = export(p.calibrated(X), X)
    with pytest.raises(ConvertError, match=r"wide: conv2d on nash-e: a qint16 depthwise .*qint8"):
        convert(qat, "nash-e")
    assert convert(qat, "bayes-e").march == "bayes-e"


@pytest.mark.parametrize(
    ("march", "border"), [("nash-e", "vpu"), ("nash-b", "external_cpu"), ("bayes", "external_cpu")]
)
def test_borders_run_where_the_march_has_a_unit_for_them(march: str, border: str) -> None:
    items = advice_items(convert(export(small_cnn(X), X), march))
    found = {item["op"]: item["backend"] for item in items}
    assert found["qtune::Quantize"] == border
    assert found["qtune::QConv"] == "bpu"
    assert {item["backend"] for item in items} == {"bpu", border}


def test_a_high_precision_result_comes_from_the_gemm_where_that_gives_floats() -> None:
    qat = export(small_cnn(X), X)
    for march, backend in (("nash-e", "vpu"), ("nash-p", "bpu")):
        items = {i["op"]: i for i in advice_items(convert(qat, march))}
        assert items["qtune::DequantizeAcc"]["backend"] == backend


def test_advice_is_printed_as_records(capsys: pytest.CaptureFixture[str]) -> None:
    convert(export(small_cnn(X), X), "nash-e", advice=True)
    records = json.loads(capsys.readouterr().out)
    assert {record["backend"] for record in records} <= {"bpu", "vpu", "external_cpu"}

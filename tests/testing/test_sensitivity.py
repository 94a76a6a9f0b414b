"""assert_sensitivity_below."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qtune import qint8, qint16
from qtune.analysis.ablation import ports
from qtune.capture.inputs import Inputs
from qtune.errors import AnalysisError, ArgumentError
from qtune.march import march
from qtune.profiler.metric import Metric
from qtune.quantization import auto_calibrate, get_qconfig, prepare
from qtune.quantization import qconfig_setter as qs
from qtune.testing import Stages, assert_sensitivity_below
from qtune.testing.limits import Limit
from qtune.testing.port_advice import port_advice, template_line

from . import nets


def test_robust_model_passes_and_every_port_has_a_score(stages: Stages) -> None:
    result = assert_sensitivity_below(stages.calib, nets.batches()[0], metric="ATOL", limit=1.0)
    names = {layer.name for layer in result.layers}
    assert {"_input_0_quant output", "stem weight", "head weight"} <= names
    assert all(layer.ok for layer in result.layers)
    assert result.metrics["sensitivity_atol"] == max(layer.value for layer in result.layers)


def test_worst_port_is_the_first_line(stages: Stages) -> None:
    with pytest.raises(AssertionError) as caught:
        assert_sensitivity_below(stages.calib, nets.batches()[0], metric="L1", limit=1e-6)
    result = caught.value.qtune_result
    worst = max(result.layers, key=lambda layer: layer.badness)
    first = str(caught.value).splitlines()[0]
    assert first.startswith(f"sensitivity_below: {worst.name}: got L1 ")
    assert first.endswith(", limit <= 1e-06")
    assert f"Raise {worst.name} to qint16" in str(caught.value)


def test_ascending_metrics_are_bounded_from_below(stages: Stages) -> None:
    x = nets.batches()[0]
    assert_sensitivity_below(stages.calib, x, metric="COSINE", limit=0.9)
    with pytest.raises(AssertionError, match=r"limit >= 1\n"):
        assert_sensitivity_below(stages.calib, x, metric="COSINE", limit=1)


def test_of_several_inputs_the_worst_counts(stages: Stages) -> None:
    loud = 5 * nets.batches()[0]  # far outside the calibrated range: clipped
    calm = assert_sensitivity_below(stages.calib, nets.batches()[0], limit=100)
    both = assert_sensitivity_below(stages.calib, [nets.batches()[0], loud], limit=100)
    assert both.metrics["sensitivity_atol"] > calm.metrics["sensitivity_atol"]


def test_nan_score_fails(stages: Stages) -> None:
    x = nets.batches()[0].clone()
    x[0, 0, 0, 0] = math.nan
    with pytest.raises(AssertionError, match="got ATOL nan"):
        assert_sensitivity_below(stages.calib, x, limit=1e30)


def test_one_output_may_be_chosen(build: Any) -> None:
    stages = build(nets.TwoHeads)
    x = nets.batches()[0]
    result = assert_sensitivity_below(stages.calib, x, limit=100, output="scores")
    body = next(layer for layer in result.layers if layer.name == "body weight")
    assert body.value == 0  # the map's conv does not touch the scores
    with pytest.raises(AnalysisError, match=r"no output named \['other'\]"):
        assert_sensitivity_below(stages.calib, x, limit=100, output="other")


def test_bad_arguments(stages: Stages) -> None:
    x = torch.zeros(1, 3, 8, 8)
    with pytest.raises(ArgumentError, match="expected a model made by prepare"):
        assert_sensitivity_below(stages.float, x, limit=1)
    with pytest.raises(ArgumentError, match="limit must be a number"):
        assert_sensitivity_below(stages.calib, x, limit=math.nan)
    with pytest.raises(ArgumentError, match="no metric 'atol'"):
        assert_sensitivity_below(stages.calib, x, metric="atol", limit=1)


class Wide(nn.Module):
    """A sum that int8 rounds coarsely, pooled, then read by a linear."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(self.stem(x) + 40).flatten(2).transpose(1, 2))


class Product(nn.Module):
    """A sum that a matmul reads as one of its two operands."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.matmul(x + 40, x)


FINE_HEAD = {"": qint8, "head": {"weight": qint16, "output": qint16}}


def setter_of(advice: str = "", base: Any = FINE_HEAD) -> qs.QconfigSetter:
    """The templates of the documents, then the lines of the advice, pasted."""
    default = [qs.ModuleNameTemplate(base), qs.ConvDtypeTemplate(weight_dtype=None)]
    lines = [line.strip() for line in advice.splitlines() if line.lstrip().startswith("ModuleName")]
    names = {"ModuleNameTemplate": qs.ModuleNameTemplate, "qint16": qint16, "qint8": qint8}
    pasted = [eval(line, names) for line in lines]
    return qs.QconfigSetter(get_qconfig(), [*default, qs.MatmulDtypeTemplate(), *pasted])


def gap(stages: Stages) -> float:
    x = nets.batches()[0]
    with torch.no_grad():
        return float((stages.quantized_bc[0](x) - stages.float(x)).abs().mean())


def test_advice_reaches_the_gemm_behind_the_port(build: Any) -> None:
    stages = build(Wide, qconfig_setter=setter_of())
    with pytest.raises(AssertionError) as caught:
        assert_sensitivity_below(stages.calib, nets.batches()[0], limit=1e-3)
    advice = caught.value.qtune_result.advice
    assert caught.value.qtune_result.where == "_generated_add_0 output"
    line = 'ModuleNameTemplate({"_generated_add_0": qint16, "head": {"input": qint16}})'
    assert line in advice
    assert gap(build(Wide, qconfig_setter=setter_of(advice))) < gap(stages) / 4


def test_advice_for_one_operand_of_a_matmul_leaves_the_other(build: Any) -> None:
    calib = build(Product).calib
    port = next(p for p in ports(calib) if p.name == "_generated_add_0 output")
    assert template_line(calib, port) == (
        'ModuleNameTemplate({"_generated_add_0": qint16, '
        '"_generated_matmul_0": {"input": [qint16, qint8]}})'
    )
    setter = setter_of(template_line(calib, port), {"": qint8})
    again = build(Product, qconfig_setter=setter).calib
    assert not any(p.name == "_generated_matmul_0 input-0" for p in ports(again))


def test_advice_for_a_weight_names_the_weight(build: Any) -> None:
    class Weight(nn.Conv2d):
        pass

    model = Weight(3, 4, 1)
    with torch.no_grad():
        model.weight[:, 0] = 400.0  # all other weights of the channel round to zero
    stages = Stages(nn.Sequential(model), nets.batches, march="nash-e")
    with pytest.raises(AssertionError) as caught:
        assert_sensitivity_below(stages.calib, nets.batches()[0], limit=1e-3)
    weight = next(p for p in ports(stages.calib) if p.kind == "weight")
    assert template_line(stages.calib, weight) == 'ModuleNameTemplate({"0": {"weight": qint16}})'
    assert "ModuleNameTemplate" in caught.value.qtune_result.advice


def test_clipped_port_is_told_to_widen_its_range(build: Any) -> None:
    stages = build(nets.Net)
    loud = 5 * nets.batches()[0]  # far outside the calibrated range
    with pytest.raises(AssertionError) as caught:
        assert_sensitivity_below(stages.calib, loud, limit=0.01)
    advice = caught.value.qtune_result.advice
    assert "is mostly clipped" in advice
    assert "int16 does not help" in advice
    assert "to qint16" not in advice
    assert re.search(r'ModuleNameTemplate\(\{"\w+": \{"threshold": [\d.]+\}\}\)', advice)
    wide = build(nets.Net, qconfig_setter=setter_of(advice, {"": qint8})).calib
    before, after = (
        {x.name: x.value for x in assert_sensitivity_below(model, loud, limit=1e9).layers}
        for model in (stages.calib, wide)
    )
    where = caught.value.qtune_result.where
    assert after[where] < before[where] / 4


def test_march_without_int16_gets_no_advice_to_use_it() -> None:
    stages = Stages(nn.Sequential(nn.Conv2d(3, 4, 1)), nets.batches, march="bernoulli2")
    with pytest.raises(AssertionError, match="bernoulli2 takes no int16 activation"):
        assert_sensitivity_below(stages.calib, nets.batches()[0], metric="L1", limit=1e-6)


def test_advice_on_an_input_of_its_own_names_it_and_its_producer(build: Any) -> None:
    default = [qs.ModuleNameTemplate({"": qint8, "_generated_add_0": qint16})]
    setter = qs.QconfigSetter(get_qconfig(), [*default, qs.ConvDtypeTemplate()])
    calib = build(Wide, qconfig_setter=setter).calib
    port = next(p for p in ports(calib) if p.name == "head input-0")
    assert template_line(calib, port) == 'ModuleNameTemplate({"head": {"input": qint16}})'


def test_limit_is_printed_with_all_its_digits(stages: Stages) -> None:
    x = nets.batches()[0]
    with pytest.raises(AssertionError, match=r"limit >= 0\.9999999\n"):
        assert_sensitivity_below(stages.calib, x, metric="COSINE", limit=0.9999999)


def test_ports_name_the_line_of_the_model_that_they_come_from(stages: Stages) -> None:
    result = assert_sensitivity_below(stages.calib, nets.batches()[0], limit=100)
    sources = {layer.name: layer.source for layer in result.layers}
    assert sources["_generated_relu_0 output"].startswith("nets.py:")


def test_advice_where_a_module_qconfig_rules_sends_there() -> None:
    model = nets.make()
    model.stem.qconfig = get_qconfig()
    stages = Stages(model, nets.batches, march="nash-e")
    port = next(p for p in ports(stages.calib) if p.name == "_input_0_quant output")
    assert "ModuleNameTemplate" in advice_for(stages, port.name)
    own = [p for p in ports(stages.calib) if p.name.startswith("_generated_relu_0")]
    assert "which beats every template" in advice_for(stages, own[0].name)


def test_advice_for_int16_does_not_ask_for_int16(build: Any) -> None:
    setter = qs.QconfigSetter(get_qconfig(), [qs.ModuleNameTemplate({"": qint16})])
    stages = build(nets.Net, qconfig_setter=setter)
    assert "is qint16 already" in advice_for(stages, "_input_0_quant output")


def advice_for(stages: Stages, name: str) -> str:
    metric = Metric.get_metric("ATOL")
    limit = Limit("ATOL", metric, 1e-9)
    return port_advice(stages.calib, name, limit, Inputs(nets.batches()[0]), None)


def test_a_cast_to_float16_is_judged_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QTUNE_RUN_DIR", "")
    x = torch.rand(2, 3, generator=torch.Generator().manual_seed(0))
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    setter = qs.QconfigSetter(get_qconfig(), [qs.ModuleNameTemplate({"2": torch.float16})])
    with march("nash-p"):
        calib = auto_calibrate(prepare(model, x, setter), [x])
    result = assert_sensitivity_below(calib, x, metric="ATOL", limit=1.0)
    (cast,) = [layer for layer in result.layers if layer.name == "2 output"]
    assert cast.dtype == "torch.float16"
    assert cast.value > 0
    limit = Limit("ATOL", Metric.ATOL, 1e-9)
    assert "keep 2 in torch.float32" in port_advice(calib, "2 output", limit, Inputs(x), None)


@pytest.mark.parametrize(
    ("metric", "limit", "text"),
    [
        ("ATOL", -1, "limit can't be met: an error is never below 0 but got -1"),
        ("COSINE", 99, "limit can't be met: a cosine is at most 1 but got 99"),
    ],
)
def test_limits_that_nothing_keeps_are_refused(
    stages: Stages, metric: str, limit: float, text: str
) -> None:
    with pytest.raises(ArgumentError, match=text):
        assert_sensitivity_below(stages.calib, nets.batches()[0], metric=metric, limit=limit)

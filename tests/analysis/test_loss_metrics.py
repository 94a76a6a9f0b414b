"""Losses as metrics, with true and with pseudo labels, as the tuning document shows them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune import Inputs
from qtune.analysis.ablation import ports
from qtune.dtype import qint16
from qtune.errors import AnalysisError, ArgumentError
from qtune.profiler import Metric, QuantAnalysis, tune
from qtune.quantization import prepare
from qtune.quantization.hbdk4 import convert, export, pre_export

from .nets import Block, assert_same, calibrated, fingerprint


class Labelled(nn.Module):
    """Logits, and the labels and weights of the data as they came."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Block()

    def forward(self, x: Tensor, label: Tensor, weight: Tensor) -> dict[str, Tensor]:
        return {"logits": self.body(x), "label": label, "weight": weight}


def batch() -> tuple[Tensor, Tensor, Tensor]:
    return torch.rand(6, 3, 8, 8), torch.randint(0, 4, (6,)), torch.rand(6) * 1e3 + 0.123


@pytest.fixture
def losses() -> Iterator[None]:
    @Metric.register("ce_loss_with_gt", False, "all")
    def ce_loss_with_gt(output1: Any, output2: Any) -> Tensor:
        return F.cross_entropy(output2["logits"], output1["label"])

    @Metric.register("distill_loss", False, "all")
    def pseudo_gt_ce_loss(output1: Any, output2: Any) -> Tensor:
        return F.cross_entropy(output2["logits"], output1["logits"].argmax(dim=-1))

    yield
    Metric.unregister("ce_loss_with_gt")
    Metric.unregister("distill_loss")


def test_labels_that_a_model_passes_through_stay_as_they_are_in_every_stage() -> None:
    net, data = Labelled().eval(), batch()
    x, label, weight = data
    calib = calibrated(net, data)
    qat_bc = export(calib, data)
    quantized_bc = convert(qat_bc, "nash-e")
    stages = (prepare(net, data), calib, pre_export(calib))
    for model in stages:
        model.eval()
    calls = [lambda m=m: m(x, label, weight) for m in stages[1:]]
    calls += [lambda m=m: m[0](x, label, weight) for m in (qat_bc, quantized_bc)]
    for call in calls:
        out = call()
        assert torch.equal(torch.as_tensor(out["label"]).to(label.dtype), label)
        assert torch.equal(torch.as_tensor(out["weight"]), weight)


@pytest.mark.usefixtures("losses")
@pytest.mark.parametrize("name", ["ce_loss_with_gt", "distill_loss"])
def test_a_loss_goes_through_the_whole_session(name: str, tmp_path: Path) -> None:
    net = Labelled().eval()
    batches = [batch() for _ in range(3)]
    model = calibrated(net, *batches)
    before = fingerprint(net), fingerprint(model)
    metric = Metric.get_metric(name)
    qa = QuantAnalysis(net, model, "fake_quant", out_dir=str(tmp_path), metric_list=[metric])
    report = qa.auto_find_bad_case(batches, topk=2)
    with torch.no_grad():
        values = [metric(net(*item), model(*item)) for item in batches]
    assert report.output_names == ["all"]
    worst = max(range(3), key=lambda index: values[index] or 0.0)
    assert report.output_to_badcase_info["all"][name][0] == (worst, values[worst])
    qa.run(metric=metric)
    assert len(qa.compare_per_layer()) > 3
    tables = qa.sensitivity(metric=metric, use_sensitivity_v2=True)
    assert list(tables) == ["all"]
    assert f"qint8-qint16_{name}" in tables["all"][0].columns
    assert (tmp_path / f"output_all_case_{worst}_sensitive_ops.csv").exists()
    old = qa.sensitivity(metric=name)
    assert len(old["all"]) == len(tables["all"][0])
    goal = {"metric": metric, "threshold": 0.0, "max_tuned_stubs": 2}
    tuned = qa.tune_bad_case({"all": goal})
    assert tuned.ports
    fresh = prepare(net, batches[0], tuned)
    wide = {(p.op.name, p.kind) for p in ports(fresh) if p.fake_quantize.dtype == qint16}
    assert wide == set(tuned.ports)
    front = tune(net, model, batches, name, budget={"stubs": 2}, latency=False)
    assert front.points[0].worst == max(v for v in values if v is not None)
    assert_same(before[0], net)
    assert_same(before[1], model)


@pytest.mark.usefixtures("losses")
def test_inputs_by_name_reach_the_labels_too(tmp_path: Path) -> None:
    net, (x, label, weight) = Labelled().eval(), batch()
    data = Inputs(x, label=label, weight=weight)
    model = calibrated(net, data)
    qa = QuantAnalysis(
        net, model, "fake_quant", out_dir=str(tmp_path), metric_list=["ce_loss_with_gt"]
    )
    qa.auto_find_bad_case([data])
    assert qa.sensitivity("ce_loss_with_gt", use_sensitivity_v2=True)["all"]


@pytest.mark.parametrize("value", [None, torch.zeros(2), "0.5", [1.0], 1j])
def test_a_metric_that_gives_no_number_is_one_error_with_its_name(
    value: Any, tmp_path: Path
) -> None:
    net, x = Block().eval(), torch.rand(1, 3, 8, 8)
    model = calibrated(net, x)
    before = fingerprint(model)
    Metric.register("odd", False, "all")(lambda a, b: value)
    try:
        qa = QuantAnalysis(net, model, "fake_quant", out_dir=str(tmp_path), metric_list=["odd"])
        for call in (
            lambda: qa.auto_find_bad_case([x]),
            lambda: qa.set_bad_case(x) or qa.sensitivity("odd", use_sensitivity_v2=True),
        ):
            with pytest.raises((ArgumentError, AnalysisError), match="metric 'odd': expected one"):
                call()
    finally:
        Metric.unregister("odd")
    assert_same(before, model)

"""``tune_bad_case`` of a session, and its result as a setter (case A32)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qtune import qint8, qint16
from qtune.analysis.ablation import ports
from qtune.analysis.outputs import scores
from qtune.errors import AnalysisError
from qtune.profiler import Metric, QuantAnalysis, SensitivityTable, TunedTables
from qtune.quantization import explain, get_qconfig, prepare
from qtune.quantization.qconfig_setter import (
    ConvDtypeTemplate,
    MatmulDtypeTemplate,
    ModuleNameTemplate,
    QconfigSetter,
    SensitivityTemplate,
)
from qtune.quantization.qconfig_template import (
    default_calibration_qconfig_setter,
    sensitive_op_calibration_8bit_weight_16bit_act_qconfig_setter,
)

from .nets import Block, assert_same, calibrated, fingerprint

BASE = (ModuleNameTemplate({"": qint8}), ConvDtypeTemplate(), MatmulDtypeTemplate())


class Heads(nn.Module):
    """Two outputs over one stem."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())
        self.a = nn.Conv2d(8, 4, 1)
        self.b = nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.stem(x)
        return self.a(x), self.b(x).sigmoid()


def session(net: nn.Module, folder: Path, count: int = 3, **options: Any) -> QuantAnalysis:
    """Two bad cases with tables of ATOL."""
    batches = [torch.rand(2, 3, 8, 8) for _ in range(count)]
    model = calibrated(net, *batches)
    qa = QuantAnalysis(net.eval(), model, "fake_quant", out_dir=str(folder), **options)
    qa.auto_find_bad_case(batches, topk=2)
    return qa


def goal(metric: Any = "ATOL", threshold: float = 0.0, most: int = 2) -> dict[str, Any]:
    return {"metric": metric, "threshold": threshold, "max_tuned_stubs": most}


def wide(model: nn.Module) -> set[tuple[str, str]]:
    return {(p.op.name, p.kind) for p in ports(model) if p.fake_quantize.dtype == qint16}


def test_the_result_is_that_of_preparing_from_scratch(tmp_path: Path) -> None:
    """A32."""
    torch.manual_seed(0)
    net, x = Block().eval(), torch.rand(2, 3, 8, 8)
    model = calibrated(net, x)
    qa = QuantAnalysis(net, model, "fake_quant", out_dir=str(tmp_path))
    qa.set_bad_case(x)
    qa.sensitivity(use_sensitivity_v2=True)
    before = fingerprint(model)
    tuned = qa.tune_bad_case({"": goal()})
    assert_same(before, model)
    (table,) = tuned[""]
    raised = [r for r in table.records() if r["tuned_cumulative_ATOL"] is not None]
    chosen = {(r["op_name"], r["fake_stub_type"]) for r in raised}
    assert 1 <= len(chosen) <= 2
    assert set(tuned.ports) == chosen
    fresh = calibrated(net, x, setter=QconfigSetter(get_qconfig(), [*BASE, tuned]))
    assert wide(fresh) == chosen
    with torch.no_grad():
        assert Metric.ATOL(net(x), fresh(x)) == raised[-1]["tuned_cumulative_ATOL"]
    scales = {(p.op.name, p.kind): p.fake_quantize.scale for p in ports(model)}
    for port in ports(fresh):
        entry = (port.op.name, port.kind)
        assert entry in chosen or torch.equal(port.fake_quantize.scale, scales[entry])
    assert not tuned  # a threshold of 0 is not reached


@pytest.fixture
def tuned(tmp_path: Path) -> TunedTables:
    qa = session(Heads(), tmp_path)
    qa.sensitivity(use_sensitivity_v2=True)
    return qa.tune_bad_case({"0": goal(), "1": goal("L1", 0.0, 1)})


def test_outputs_and_cases_are_searched_apart_and_raised_together(
    tuned: TunedTables, tmp_path: Path
) -> None:
    assert list(tuned) == ["0", "1"]
    assert len(tuned["0"]) >= 2
    assert {t.output_name for t in tuned["1"]} == {"1"}
    assert "tuned_cumulative_L1" in tuned["1"][0].columns
    assert "tuned_cumulative_ATOL" in tuned["0"][0].columns
    found = {
        (row["op_name"], row["fake_stub_type"])
        for output, tables in tuned.items()
        for table in tables
        for row in table.records()
        if row[table.columns[-1]] is not None
    }
    assert found == set(tuned.ports)
    assert wide(prepare(Heads().eval(), torch.rand(1, 3, 8, 8), tuned)) == found
    for table in tuned["0"]:
        stem = tmp_path / f"output_0_tuned_case_{table.case}_sensitive_ops"
        assert SensitivityTable.load(stem) == table
        assert stem.with_suffix(".txt").read_text().startswith(str(table))
        assert stem.with_suffix(".csv").exists()


def test_the_result_is_a_value(tuned: TunedTables, tmp_path: Path) -> None:
    torch.save(tuned, tmp_path / "tuned.pt")
    assert torch.load(tmp_path / "tuned.pt") == tuned
    assert tuned.to_dict()["ports"] == [list(entry) for entry in tuned.ports]
    frame = tuned.to_pandas()
    assert set(frame["output"]) == {"0", "1"}
    assert len(frame) == sum(len(t) for tables in tuned.values() for t in tables)
    assert "threshold not reached" in str(tuned)
    assert TunedTables({}).to_pandas().empty


def test_templates_take_the_result_and_its_files(tuned: TunedTables, tmp_path: Path) -> None:
    torch.save(tuned, tmp_path / "tuned.pt")
    x = torch.rand(1, 3, 8, 8)
    for table in (tuned, tmp_path / "tuned.pt"):
        model = prepare(
            Heads().eval(), x, QconfigSetter(get_qconfig(), [*BASE, SensitivityTemplate(table)])
        )
        assert wide(model) == set(tuned.ports)
        assert not explain(model).unmatched_rules
    old = sensitive_op_calibration_8bit_weight_16bit_act_qconfig_setter(tuned, topk=1)
    model = prepare(Heads().eval(), x, (old, default_calibration_qconfig_setter))
    assert len(wide(model)) == 1


def test_in_a_tuple_of_setters_it_speaks_for_its_stubs_only(tuned: TunedTables) -> None:
    x = torch.rand(1, 3, 8, 8)
    model = prepare(Heads().eval(), x, (tuned, default_calibration_qconfig_setter))
    assert wide(model) == set(tuned.ports)


def test_a_search_that_raises_nothing_is_a_setter_too(tmp_path: Path) -> None:
    qa = session(Heads(), tmp_path)
    qa.sensitivity(use_sensitivity_v2=True)
    tuned = qa.tune_bad_case({"0": goal(threshold=math.inf)})
    assert tuned
    assert tuned.ports == ()
    model = prepare(Heads().eval(), torch.rand(1, 3, 8, 8), tuned, strict=True)
    assert wide(model) == set()


def test_without_tables_of_v2_the_error_says_what_to_call(tmp_path: Path) -> None:
    qa = session(Heads(), tmp_path)
    qa.sensitivity()
    text = r"call sensitivity\(use_sensitivity_v2=True\) first"
    with pytest.raises(FileNotFoundError, match=text):
        qa.tune_bad_case({"0": goal()})
    qa.sensitivity(use_sensitivity_v2=True)
    with pytest.raises(FileNotFoundError, match=r"output 'x'.*there are tables of: '0', '1'"):
        qa.tune_bad_case({"x": goal()})


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({}, "outputs_config is a dict of output name"),
        ([goal()], "outputs_config is a dict of output name"),
        ({"0": {}}, r"outputs_config\['0'\] has the keys metric, threshold"),
        ({"all": goal()}, "ATOL is of scope 'pertensor' and has no value for the whole output"),
    ],
)
def test_a_wrong_config_is_one_clear_error(config: Any, text: str, tmp_path: Path) -> None:
    qa = session(Heads(), tmp_path)
    with pytest.raises(AnalysisError, match=text):
        qa.tune_bad_case(config)


@pytest.fixture
def whole_loss() -> Iterator[str]:
    @Metric.register("whole_loss", False, "all")
    def whole_loss(output1: Any, output2: Any) -> Tensor:
        return sum((a - b).square().mean() for a, b in zip(output1, output2, strict=True))

    yield "whole_loss"
    Metric.unregister("whole_loss")


@pytest.mark.parametrize("method", ["ablation", "grad_x_error"])
def test_a_loss_of_the_whole_output_is_tuned_under_all(
    whole_loss: str, method: str, tmp_path: Path
) -> None:
    qa = session(Heads(), tmp_path, metric_list=[whole_loss])
    qa.sensitivity(whole_loss, use_sensitivity_v2=True, sensitivity_method=method)
    tuned = qa.tune_bad_case({"all": goal(whole_loss, 0.0, 3)})
    case, table = int(tuned["all"][0].case), tuned["all"][0]
    values = [v for v in table.column("tuned_cumulative_whole_loss") if v is not None]
    assert 1 <= len(values) <= 3
    assert values == sorted(values, reverse=True)
    net, model = qa.baseline_model, qa.analysis_model
    inputs = torch.load(tmp_path / "badcase" / f"{case}.pt")["args"]
    with torch.no_grad():
        start = scores(Metric.whole_loss, net(*inputs), model(*inputs))["all"]
    assert start is not None
    assert values[0] < start
    with pytest.raises(AnalysisError, match="is of scope 'all', its output is called 'all'"):
        qa.tune_bad_case({"0": goal(whole_loss)})


def test_a_metric_other_than_the_tables_decides_what_helps(tmp_path: Path) -> None:
    qa = session(Heads(), tmp_path)
    tables = qa.sensitivity("ATOL", use_sensitivity_v2=True)
    tuned = qa.tune_bad_case({"0": goal("COSINE", 1.0, 3)})
    (table, *_) = tuned["0"]
    assert table.column("op_name") == tables["0"][0].column("op_name")
    values = [v for v in table.column("tuned_cumulative_COSINE") if v is not None]
    assert values == sorted(values)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_interrupted_search_leaves_both_models(
    error: type[BaseException], tmp_path: Path
) -> None:
    qa = session(Heads(), tmp_path)
    qa.sensitivity(use_sensitivity_v2=True)
    calls = []

    @Metric.register("failing", False, "pertensor")
    def failing(a: Tensor, b: Tensor) -> float:
        calls.append(1)
        if len(calls) == 6:
            raise error("stop")
        return 1.0 / len(calls)

    before = fingerprint(qa.analysis_model), fingerprint(qa.baseline_model)
    try:
        with pytest.raises(error):
            qa.tune_bad_case({"0": goal("failing", 0.0, 5)})
    finally:
        Metric.unregister("failing")
    assert_same(before[0], qa.analysis_model)
    assert_same(before[1], qa.baseline_model)

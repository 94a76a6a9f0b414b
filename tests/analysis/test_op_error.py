"""The own error of each operator: on the baseline's input, against the baseline's result."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qtune.analysis.compare import LayerComparison, compare
from qtune.analysis.facts import facts_of
from qtune.analysis.op_error import OpError, channel_sqnr, op_errors
from qtune.analysis.quant_analysis import QuantAnalysis
from qtune.capture.inputs import Inputs, as_inputs
from qtune.errors import AnalysisError
from qtune.nn.eager import as_graph
from qtune.profiler.float_reference import observe_baseline
from qtune.profiler.metric import Metric
from qtune.profiler.observe import observe
from qtune.profiler.undisturbed import undisturbed
from qtune.quantization import convert, hbdk4
from tests.profiler.stages import X, eager_net

from .nets import Block, calibrated
from .planted import POSITIONS, planted

METRICS = [Metric.get_metric(m) for m in ("COSINE", "L1", "ATOL", "MSE", "SQNR", "KL")]


def errors_of(baseline: Any, analysed: Any, x: Any) -> dict[str, OpError]:
    inputs = as_inputs(x)
    with undisturbed(baseline, analysed):
        return op_errors(observe_baseline(baseline, analysed, inputs), analysed, inputs, METRICS)


def compared(baseline: Any, analysed: Any, x: Any) -> LayerComparison:
    inputs = as_inputs(x)
    base = observe_baseline(baseline, analysed, inputs)
    facts = facts_of(baseline, analysed, "fake_quant", inputs, base, METRICS)
    return compare(base, observe(analysed, inputs, keep_inputs=True), METRICS, facts)


@pytest.mark.parametrize("position", POSITIONS)
def test_own_errors_point_at_the_planted_activation_under_every_metric(position: str) -> None:
    setting = planted(position)
    found = compared(setting.net, setting.model, setting.batches[0])
    table = found.op_errors()
    assert table.names[0] == setting.culprit
    ends = dict(zip(found.names, found.rows, strict=True))
    for metric in METRICS:
        cells = {n: ends[n][f"op_error_{metric}"] for n in table.names}
        assert max(cells, key=lambda n: metric.badness(cells[n])) == setting.culprit, metric
    advised = {n: row["advice"] for n, row in ends.items() if row["advice"]}
    assert set(advised) == {setting.culprit}
    assert "Rounding error" in advised[setting.culprit]


def test_a_quantizer_alone_is_off_by_half_a_step() -> None:
    x = torch.linspace(-1, 1, 1000).view(10, 100)
    model = nn.Linear(100, 4)
    errors = errors_of(model.eval(), calibrated(model, x), x)
    own = errors["_input_0_quant"]
    assert 0.49 < own.steps <= 0.5 + 1e-5  # x / scale is rounded once in float32
    assert own.metrics["ATOL"] == pytest.approx(own.steps / 127.5, rel=1e-6)


def test_what_an_operator_gets_from_a_bad_one_is_not_its_own_error() -> None:
    """Two nets that differ in the scale of one operator differ in its own error only."""
    torch.manual_seed(0)
    model, x = Block().eval(), torch.rand(2, 3, 8, 8)
    good, bad = calibrated(model, x), calibrated(model, x)
    quantizer: Any = bad.get_submodule("stem.2").activation_post_process
    quantizer.set_qparams(quantizer.scale * 40)
    left, right = errors_of(model, good, x), errors_of(model, bad, x)
    assert {name for name in left if left[name] != right[name]} == {"stem.2"}
    assert right["stem.2"].metrics["L1"] > 10 * left["stem.2"].metrics["L1"]


def test_members_of_a_group_before_its_last_have_none() -> None:
    model, x = Block().eval(), torch.rand(2, 3, 8, 8)
    found = compared(model, calibrated(model, x), x)
    rows = dict(zip(found.names, found.rows, strict=True))
    assert rows["stem.0"]["op_error_ATOL"] is None
    assert rows["stem.2"]["op_error_ATOL"] > 0
    assert "stem.0" not in found.op_errors().names
    assert found.op_errors().columns[-2:] == ("op_error_qscale_diff", "op_error_channel_SQNR")


def test_every_stage_has_own_errors_and_they_stay_small() -> None:
    model, x = Block().eval(), torch.rand(2, 3, 8, 8)
    calib = calibrated(model, x)
    pre = hbdk4.pre_export(calib)
    qat = hbdk4.export(calib, x)
    integer = hbdk4.convert(qat, "nash-e")
    pairs = {"pre": (calib, pre), "qat": (pre, qat), "int": (pre, integer), "bc": (qat, integer)}
    pairs["quantized"] = (calib, convert(calib))
    for name, (baseline, analysed) in pairs.items():
        errors = errors_of(baseline, analysed, x)
        steps = {n: e.steps for n, e in errors.items() if e.steps is not None}
        assert {"stem.2", "_generated_sigmoid_0"} <= set(steps), name
        assert max(steps.values()) <= 1 + 1e-4, name  # whole steps times a float32 scale
        assert name != "qat" or max(steps.values()) == 0


def test_a_converted_model_and_its_module_have_the_same_own_errors() -> None:
    model, x = Block().eval(), torch.rand(2, 3, 8, 8)
    calib = calibrated(model, x)
    integer = hbdk4.convert(hbdk4.export(calib, x), "nash-e")
    left, right = errors_of(calib, convert(calib), x), errors_of(calib, integer, x)
    shared = set(left) & set(right)
    assert "_generated_add_0" in shared
    for name in shared:
        assert left[name].metrics == right[name].metrics, name


def test_the_channel_measure_sees_what_one_large_channel_hides() -> None:
    a = torch.ones(1, 4, 100)
    a[:, 3] *= 1000
    b = a.clone()
    b[:, :3] += 0.5  # noise of 6 dB below the signal in three of four channels
    assert channel_sqnr(a, b) == pytest.approx(6.0206, abs=1e-3)  # 20 log10(2)
    assert Metric.SQNR(a, b) > 60
    assert channel_sqnr(a, a) == torch.inf
    assert channel_sqnr(torch.zeros(1, 4, 9), torch.zeros(1, 4, 9)) == torch.inf
    assert channel_sqnr(torch.ones(4), torch.ones(4)) is None


def test_a_model_without_a_graph_is_refused_by_name() -> None:
    model, x = Block().eval(), torch.rand(2, 3, 8, 8)
    run = observe(calibrated(model, x), Inputs(x))
    with pytest.raises(AnalysisError, match="own errors need a model with a graph, got a Block"):
        op_errors(run, model, Inputs(x), METRICS)


def test_several_results_go_on_as_the_baselines() -> None:
    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            left, right = x.chunk(2, 1)
            return self.fc(torch.cat([right, left], 1))

    model, x = Halves().eval(), torch.rand(3, 4)
    errors = errors_of(model, calibrated(model, x), x)
    assert {"_generated_chunk_0", "_generated_chunk_0:1"} <= set(errors)
    assert errors["_generated_chunk_0:1"].steps == 0


def test_a_converted_model_of_eager_mode_is_compared_without_a_graph(tmp_path: Path) -> None:
    prepared = eager_net()
    converted = convert(copy.deepcopy(prepared))
    qa = QuantAnalysis(as_graph(prepared, X), converted, "quantized", out_dir=tmp_path)
    qa.set_bad_case(X)
    qa.run()
    layers = qa.compare_per_layer()
    assert set(layers.op_errors().names) == {"quant", "relu", "side", "add", "dequant"}
    steps = [row["op_error_qscale_diff"] for row in layers.rows]
    assert max(step for step in steps if step is not None) <= 1 + 1e-4  # times a float32 scale

"""The greedy search for stubs to raise to int16 (case A32)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from qtune import qint8, qint16
from qtune.analysis.ablation import ports
from qtune.analysis.sensitivity import sensitivity_tables
from qtune.analysis.tune import TuneGoal, tune
from qtune.capture.inputs import as_inputs
from qtune.errors import AnalysisError
from qtune.nn.prepared import PreparedModel
from qtune.profiler.metric import Metric
from qtune.profiler.sensitivity_table import SensitivityTable

from .nets import Block, assert_same, calibrated, fingerprint


@pytest.fixture
def setting() -> tuple[PreparedModel, Any, SensitivityTable, Callable[[], float]]:
    x = torch.rand(4, 3, 8, 8)
    model = Block().eval()
    prepared = calibrated(model, x)
    baseline = model(x).detach()
    (table,) = sensitivity_tables(prepared, as_inputs(x), Metric.ATOL, "0", shown=False).values()

    def score() -> float:
        with torch.no_grad():
            return float((prepared(x) - baseline).abs().max())

    return prepared, x, table, score


def tuned_rows(result: SensitivityTable) -> list[dict[str, Any]]:
    return [r for r in result.records() if r["tuned_cumulative_ATOL"] is not None]


def test_at_most_so_many_stubs_are_raised_and_the_error_never_grows(setting: Any) -> None:
    """A32."""
    model, _, table, score = setting
    before, start = fingerprint(model), score()
    result = tune(model, table, TuneGoal(Metric.ATOL, 0.0, 2), score)
    rows = tuned_rows(result)
    assert 1 <= len(rows) <= 2
    values = [start, *(row["tuned_cumulative_ATOL"] for row in rows)]
    assert values == sorted(values, reverse=True)
    assert len(set(values)) == len(values)
    assert_same(before, model)  # dtypes and, bit for bit, scales


def test_the_result_is_that_of_preparing_with_these_stubs_as_int16(setting: Any) -> None:
    """A32."""
    model, _, table, score = setting
    result = tune(model, table, TuneGoal(Metric.ATOL, 0.0, 2), score)
    rows = tuned_rows(result)
    chosen = {(row["op_name"], row["fake_stub_type"]) for row in rows}
    for port in ports(model):
        if (port.op.name, port.kind) in chosen:
            port.fake_quantize.set_dtype(qint16)
    assert score() == rows[-1]["tuned_cumulative_ATOL"]


def test_it_stops_at_the_threshold_and_leaves_skipped_stubs(setting: Any) -> None:
    model, _, table, score = setting
    reached = TuneGoal(Metric.ATOL, score(), 10)
    assert tuned_rows(tune(model, table, reached, score)) == []
    kinds = ["weight", "output"]
    skipping = TuneGoal(Metric.ATOL, 0.0, 10, {"": kinds})
    assert tuned_rows(tune(model, table, skipping, score)) == []
    weights = TuneGoal(Metric.ATOL, 0.0, 10, {"": ["output"]})
    kept = tuned_rows(tune(model, table, weights, score))
    assert kept
    assert {row["fake_stub_type"] for row in kept} == {"weight"}


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_dtypes_and_scales_come_back_after_an_error(
    setting: Any, error: type[BaseException]
) -> None:
    model, _, table, score = setting
    before, calls = fingerprint(model), []

    def failing() -> float:
        calls.append(1)
        if len(calls) == 3:
            raise error("stop")
        return score()

    with pytest.raises(error):
        tune(model, table, TuneGoal(Metric.ATOL, 0.0, 5), failing)
    assert_same(before, model)
    assert {port.fake_quantize.dtype for port in ports(model)} == {qint8}


def test_scales_set_by_hand_come_back_bit_for_bit(setting: Any) -> None:
    model, _, table, score = setting
    port = next(p for p in ports(model) if p.kind == "output")
    port.fake_quantize.set_qparams(0.0123)
    before = fingerprint(model)
    tune(model, table, TuneGoal(Metric.ATOL, 0.0, 10), score)
    assert_same(before, model)


def test_a_config_lists_its_keys() -> None:
    goal = TuneGoal.of({"metric": "COSINE", "threshold": 0.9, "max_tuned_stubs": 3})
    assert goal.metric is Metric.COSINE
    assert goal.reached(0.95)
    assert not goal.reached(0.85)
    with pytest.raises(AnalysisError, match=r"threshold, max_tuned_stubs; got \['metric'\]"):
        TuneGoal.of({"metric": "ATOL"})

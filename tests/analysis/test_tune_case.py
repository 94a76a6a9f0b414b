"""The greedy search for stubs to raise to int16 (case A32)."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from qtune import qint8, qint16
from qtune.analysis.ablation import ports
from qtune.analysis.grad_x_error import SCORE
from qtune.analysis.raising import Raising
from qtune.analysis.sensitivity import sensitivity_tables
from qtune.analysis.tune_case import Skip, TunedCase, TuneGoal, by_gain, tune_case
from qtune.capture.inputs import as_inputs
from qtune.errors import AnalysisError
from qtune.march import march
from qtune.nn.prepared import PreparedModel
from qtune.profiler.metric import Metric
from qtune.profiler.sensitivity_table import SensitivityTable
from qtune.quantization import get_qconfig
from qtune.quantization.qconfig_setter import (
    ConvDtypeTemplate,
    ModuleNameTemplate,
    QconfigSetter,
)

from .nets import Block, assert_same, calibrated, fingerprint

Score = Callable[[], float]


@pytest.fixture
def setting() -> tuple[PreparedModel, SensitivityTable, Score]:
    x = torch.rand(4, 3, 8, 8)
    model = Block().eval()
    prepared = calibrated(model, x)
    baseline = model(x).detach()
    (table,) = sensitivity_tables(prepared, as_inputs(x), Metric.ATOL, "0", shown=False).values()

    def score() -> float:
        with torch.no_grad():
            return float((prepared(x) - baseline).abs().max())

    return prepared, table, score


def tuned_rows(result: TunedCase) -> list[dict[str, Any]]:
    return [r for r in result.table.records() if r["tuned_cumulative_ATOL"] is not None]


def test_at_most_so_many_stubs_are_raised_and_the_error_never_grows(setting: Any) -> None:
    """A32."""
    model, table, score = setting
    before, start = fingerprint(model), score()
    result = tune_case(model, table, TuneGoal(Metric.ATOL, 0.0, 2), score)
    rows = tuned_rows(result)
    assert 1 <= len(rows) <= 2
    values = [start, *(row["tuned_cumulative_ATOL"] for row in rows)]
    assert values == sorted(values, reverse=True)
    assert len(set(values)) == len(values)
    assert not result.reached
    assert_same(before, model)  # dtypes and, bit for bit, scales


def test_exactly_the_stubs_with_a_value_were_int16_at_the_end(setting: Any) -> None:
    """A32."""
    model, table, score = setting
    seen: list[tuple[float, set[tuple[str, str]]]] = []

    def watched() -> float:
        value = score()
        wide = {(p.op.name, p.kind) for p in ports(model) if p.fake_quantize.dtype == qint16}
        seen.append((value, wide))
        return value

    rows = tuned_rows(tune_case(model, table, TuneGoal(Metric.ATOL, 0.0, 2), watched))
    chosen = {(row["op_name"], row["fake_stub_type"]) for row in rows}
    last = rows[-1]["tuned_cumulative_ATOL"]
    assert (last, chosen) in seen
    for port in ports(model):
        if (port.op.name, port.kind) in chosen:
            port.fake_quantize.set_dtype(qint16)
    assert score() == last


def test_it_stops_at_the_threshold_and_leaves_skipped_stubs(setting: Any) -> None:
    model, table, score = setting
    reached = tune_case(model, table, TuneGoal(Metric.ATOL, score(), 10), score)
    assert reached.reached
    assert tuned_rows(reached) == []
    goal = TuneGoal(Metric.ATOL, 0.0, 10)
    skipping = tune_case(model, table, goal, score, Skip({"": ("weight", "output", "input")}))
    assert tuned_rows(skipping) == []
    assert skipping.skipped["stem.0 weight"] == "skip_prefix ''"
    kept = tuned_rows(tune_case(model, table, goal, score, Skip({"": ("output",)})))
    assert kept
    assert {row["fake_stub_type"] for row in kept} == {"weight"}


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_dtypes_and_scales_come_back_after_an_error(
    setting: Any, error: type[BaseException]
) -> None:
    model, table, score = setting
    before, calls = fingerprint(model), []

    def failing() -> float:
        calls.append(1)
        if len(calls) == 3:
            raise error("stop")
        return score()

    with pytest.raises(error):
        tune_case(model, table, TuneGoal(Metric.ATOL, 0.0, 5), failing)
    assert_same(before, model)
    assert {port.fake_quantize.dtype for port in ports(model)} == {qint8}


def test_scales_set_by_hand_come_back_bit_for_bit(setting: Any) -> None:
    model, table, score = setting
    port = next(p for p in ports(model) if p.kind == "output")
    port.fake_quantize.set_qparams(0.0123)
    before = fingerprint(model)
    tune_case(model, table, TuneGoal(Metric.ATOL, 0.0, 10), score)
    assert_same(before, model)


def test_from_a_score_of_nan_any_number_is_better(setting: Any) -> None:
    model, table, score = setting
    first = by_gain(table).records()[0]
    values = iter([math.nan, math.nan, 0.5, 0.5, 0.5])
    result = tune_case(model, table, TuneGoal(Metric.ATOL, 0.5, 5), lambda: next(values))
    (row,) = tuned_rows(result)
    assert row["tuned_cumulative_ATOL"] == 0.5
    assert row["op_name"] != first["op_name"] or row["fake_stub_type"] != first["fake_stub_type"]
    assert result.reached


def test_stubs_that_the_model_can_not_have_in_int16_are_named(setting: Any) -> None:
    """Two int16 operands leave the last GEMM without its high-precision output."""
    model, _, score = setting
    feeding = next(p for p in reversed(list(Raising(model).ports)) if p[1] == "output")
    rows = [["head", "", "weight", "qint8", "", 2.0], [feeding[0], "", "output", "qint8", "", 1.0]]
    columns = ["op_name", "op_type", "fake_stub_type", "dtype", "flops", "qint8-qint16_ATOL"]
    table = SensitivityTable(columns, rows, "ATOL", False, "", "0")
    falling = iter([3.0, 2.0, 1.0])
    result = tune_case(model, table, TuneGoal(Metric.ATOL, 0.0, 5), lambda: next(falling))
    assert [row["op_name"] for row in tuned_rows(result)] == ["head"]
    (reason,) = result.skipped.values()
    assert reason == "head output would be quantized on its own"


def test_what_the_march_does_not_take_is_refused_with_its_reason() -> None:
    x = torch.rand(1, 3, 4, 4)
    with march("bernoulli2"):
        model = calibrated(nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Flatten()).eval(), x)
    plans = {entry: Raising(model).plan([entry]) for entry in Raising(model).ports}
    assert plans[("0", "weight")] == "bernoulli2 takes weights of qint8 only"
    assert plans[("1", "output")] == "bernoulli2 takes qint8 as output of conv2d"


def test_an_input_with_a_requantize_of_its_own_loses_it() -> None:
    """A GEMM that is int8 by a template behind an int16 result: raised, it takes the result."""
    x = torch.rand(2, 3, 8, 8)
    base = [ModuleNameTemplate({"": qint16}), ConvDtypeTemplate(qint8, qint8)]
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 1)).eval()
    model = calibrated(net, x, setter=QconfigSetter(get_qconfig(), base))
    entry = next(e for e in Raising(model).ports if e[1].startswith("input") and e[0] == "2")
    with Raising(model).kept_back() as raising:
        plan = raising.plan([entry])
        assert not isinstance(plan, str)
        assert plan.gone == {entry}
        raising.apply(plan)
        with torch.no_grad():
            tried = model(x)
    wide = [*base, ModuleNameTemplate({"2": {"dtype": {"input": qint16}}})]
    fresh = calibrated(net, x, setter=QconfigSetter(get_qconfig(), wide))
    with torch.no_grad():
        assert torch.equal(tried, fresh(x))
        assert not torch.equal(tried, model(x))


def test_a_model_from_a_pickle_is_still_searched(setting: Any, caplog: Any) -> None:
    model, table, _ = setting
    bare = copy.copy(model)
    bare.resolution = replace(model.resolution, basis=None)
    falling = iter([3.0, 2.0])
    tune_case(bare, table, TuneGoal(Metric.ATOL, 2.0, 5), lambda: next(falling))
    assert "does not know how it was configured" in caplog.text


def test_a_table_of_gradients_is_tried_in_its_own_order(setting: Any) -> None:
    model, table, score = setting
    rows = [[*row[:5], value] for value, row in enumerate(table.rows)]
    grad = SensitivityTable([*table.columns[:5], SCORE], rows, SCORE, False, "all", "0")
    first = tune_case(model, grad, TuneGoal(Metric.ATOL, 0.0, 1), score)
    assert first.table.column(SCORE) == sorted(range(len(rows)), reverse=True)
    old = SensitivityTable(["op_name", "fake_stub_type"], [], "ATOL", False, "", "0")
    with pytest.raises(AnalysisError, match=r"neither qint8-qint16_ATOL nor GRAD_X_ERROR"):
        by_gain(old)


def test_a_config_lists_its_keys() -> None:
    goal = TuneGoal.of("", {"metric": "COSINE", "threshold": 0.9, "max_tuned_stubs": 3})
    assert goal.metric is Metric.COSINE
    assert goal.reached(0.95)
    assert not goal.reached(0.85)
    assert not goal.reached(math.nan)


GOOD = {"metric": "ATOL", "threshold": 0.1, "max_tuned_stubs": 3}


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"metric": "ATOL"}, r"has the keys .*; got \['metric'\] \(missing: threshold, max_"),
        ({**GOOD, "treshold": 1}, "got .*'treshold'"),
        (3, "got 3"),
        ({**GOOD, "threshold": "0.2"}, "threshold is a number, got '0.2'"),
        ({**GOOD, "threshold": math.nan}, "threshold is NaN"),
        ({**GOOD, "max_tuned_stubs": 2.5}, "an integer from 0 on, got 2.5"),
        ({**GOOD, "max_tuned_stubs": -1}, "an integer from 0 on, got -1"),
        ({**GOOD, "max_tuned_stubs": True}, "an integer from 0 on, got True"),
    ],
)
def test_a_wrong_config_says_what_is_expected(config: Any, text: str) -> None:
    with pytest.raises(AnalysisError, match=text):
        TuneGoal.of("0", config)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (["head"], "a dict of prefix -> list of kinds"),
        ({"head": "output"}, "expected a list of output, weight, input or input-<n>"),
        ({"head": ["outputs"]}, "expected a list of output"),
        ({"head": []}, "expected a list of output"),
    ],
)
def test_a_wrong_skip_prefix_says_what_is_expected(given: Any, text: str) -> None:
    with pytest.raises(AnalysisError, match=text):
        Skip.of(given)


def test_a_prefix_that_no_operator_has_is_an_error(setting: Any) -> None:
    model, table, score = setting
    with pytest.raises(AnalysisError, match=r"'heads': no operator's name begins so; close: head"):
        tune_case(model, table, TuneGoal(Metric.ATOL, 0.0, 1), score, Skip({"heads": ("output",)}))


def table_of(*entries: tuple[str, str]) -> SensitivityTable:
    """A ranking, the first entry first."""
    columns = ["op_name", "op_type", "fake_stub_type", "dtype", "flops", "qint8-qint16_ATOL"]
    rows = [
        [name, "", port, "qint8", "", float(len(entries) - place)]
        for place, (name, port) in enumerate(entries)
    ]
    return SensitivityTable(columns, rows, "ATOL", False, "", "0")


@pytest.fixture
def with_function() -> PreparedModel:
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Sigmoid(), nn.Conv2d(4, 4, 1), nn.Sigmoid())
    return calibrated(net.eval(), torch.rand(2, 3, 4, 4))


def test_what_makes_the_operand_of_a_function_is_raised_with_it(
    with_function: PreparedModel,
) -> None:
    """A look-up table with an int16 result takes an int16 operand."""
    entries = ("0", "output"), ("0", "weight"), ("1", "output"), ("2", "weight")
    scores = iter([4.0, 5.0, 5.0, 2.0, 1.0])
    goal = TuneGoal(Metric.ATOL, 0.0, 3)
    result = tune_case(with_function, table_of(*entries), goal, lambda: next(scores))
    rows = [(r["op_name"], r["fake_stub_type"]) for r in result.table.records()]
    assert rows == [("0", "weight"), ("1", "output"), ("0", "output"), ("2", "weight")]
    assert result.table.column("tuned_cumulative_ATOL") == [None, 2.0, 2.0, 1.0]
    assert result.skipped == {}


def test_what_comes_along_counts_and_may_be_forbidden(with_function: PreparedModel) -> None:
    table = table_of(("1", "output"), ("0", "output"))
    few = tune_case(with_function, table, TuneGoal(Metric.ATOL, 0.0, 1), lambda: 1.0)
    assert few.skipped == {"1 output": "max_tuned_stubs: 0 output would come with it"}
    goal, kept = TuneGoal(Metric.ATOL, 0.0, 5), Skip({"0": ("output",)})
    skipping = tune_case(with_function, table, goal, lambda: 1.0, kept)
    assert skipping.skipped["1 output"] == "0 output comes with it: skip_prefix '0'"


def test_scales_that_do_not_follow_from_the_statistics_come_back(setting: Any) -> None:
    """As after training with learned scales."""
    model, table, score = setting
    for port in ports(model):
        port.fake_quantize.scale.data.mul_(1.125)
    before = fingerprint(model)
    assert tuned_rows(tune_case(model, table, TuneGoal(Metric.ATOL, 0.0, 3), score))
    assert_same(before, model)


def test_what_would_take_a_cast_to_float16_away_is_skipped_with_the_reason() -> None:
    torch.manual_seed(0)
    with march("nash-p"):
        net, x = Block().eval(), torch.randn(2, 3, 8, 8)
        half = [ModuleNameTemplate({"": qint8, "head": torch.float16})]
        model = calibrated(net, x, setter=QconfigSetter(get_qconfig(), half))
        baseline, before = net(x).detach(), fingerprint(model)

        def score() -> float:
            with torch.no_grad():
                return float((model(x) - baseline).abs().max())

        (table,) = sensitivity_tables(model, as_inputs(x), Metric.ATOL, "0", shown=False).values()
        result = tune_case(model, table, TuneGoal(Metric.ATOL, 0.0, 8), score)
    assert_same(before, model)
    raised = [(row["op_name"], row["fake_stub_type"]) for row in tuned_rows(result)]
    assert ("head", "weight") in raised
    assert result.skipped["head output"] == "a cast to float16 stays that"
    # int16 x int16 has no float result
    operand = "_generated_adaptive_avg_pool2d_0 output"
    assert result.skipped[operand].startswith("head output is torch.float16, has no statistics")

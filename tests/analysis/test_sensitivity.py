"""Sensitivity by ablation, against scores computed by hand."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qtune.analysis.ablation import ports
from qtune.analysis.sensitivity import (
    COLUMNS,
    HEAD,
    gain_of,
    sensitivity_lists,
    sensitivity_tables,
)
from qtune.capture.inputs import Inputs, as_inputs
from qtune.dtype import qint8
from qtune.errors import AnalysisError, NotCalibratedError
from qtune.nn.qat import Conv2d
from qtune.profiler.metric import Metric
from qtune.quantization import (
    FakeQuantState,
    QconfigSetter,
    QuantStub,
    get_qconfig,
    prepare,
    set_fake_quantize,
)
from qtune.quantization.qconfig_setter import ModuleNameTemplate

from .nets import Block, Detector, Sum, assert_same, calibrated, fingerprint

STEP8, STEP16 = 1 / 127.5, 1 / 32767.5
CLOSE = {"rel": 1e-3, "abs": 2e-7}  # the net computes in float32: a sum near 1 has 1e-7 of noise


def one_table(model: nn.Module, x: Any, metric: str = "ATOL", **options: Any) -> dict[str, Any]:
    tables = sensitivity_tables(
        model, as_inputs(x), Metric.get_metric(metric), "0", shown=False, **options
    )
    (table,) = tables.values()
    return {f"{row['op_name']} {row['fake_stub_type']}": row for row in table.records()}


def test_scores_of_a_sum_are_those_computed_by_hand() -> None:
    x = torch.tensor([[1.0, 0.3]])
    rows = one_table(calibrated(Sum(), x), x)
    quant = rows["_input_0_quant output"]
    # 1.0 lies half a step above the largest code, 0.3 = 38.25 steps
    assert quant["qint8_ATOL"] == pytest.approx(0.75 * STEP8, **CLOSE)
    assert quant["qint16_ATOL"] == pytest.approx(0.75 * STEP16, **CLOSE)
    assert quant["qint8-qint16_ATOL"] == quant["qint8_ATOL"] - quant["qint16_ATOL"]
    assert quant["clip_ATOL"] == 0.0  # exactly: a min-max scale covers its data
    assert quant["round_ATOL"] == quant["qint8_ATOL"]
    half = abs(float(torch.tensor(0.3).half()) - 0.3)
    assert quant["fp16_ATOL"] == pytest.approx(half, **CLOSE)
    # both weights are 1: code 127 of a scale of 1 / 127.5
    assert rows["fc weight"]["qint8_ATOL"] == pytest.approx(1.3 * 0.5 * STEP8, **CLOSE)


def test_round_and_clip_split_the_error_of_data_beyond_the_calibrated_range() -> None:
    model = calibrated(Sum(), torch.tensor([[1.0, 0.3]]))
    quant = one_table(model, torch.tensor([[2.0, 0.3]]))["_input_0_quant output"]
    clip, rounding = 2.0 - 127 * STEP8, 0.25 * STEP8
    assert quant["clip_ATOL"] == pytest.approx(clip, **CLOSE)
    assert quant["round_ATOL"] == pytest.approx(rounding, **CLOSE)
    assert quant["qint8_ATOL"] == pytest.approx(clip + rounding, **CLOSE)


def test_columns_dtype_and_flops_are_the_documented_ones() -> None:
    x = torch.rand(1, 3, 24, 24)
    model = calibrated(nn.Conv2d(3, 3, 1), x)
    (table,) = sensitivity_tables(model, as_inputs(x), Metric.ATOL, "7", shown=False).values()
    assert tuple(table.columns) == (*HEAD, *(f"{name}_ATOL" for name in COLUMNS))
    assert (table.case, table.metric, table.ascending) == ("7", "ATOL", False)
    weight = next(row for row in table.records() if row["fake_stub_type"] == "weight")
    assert weight["op_type"] == "qtune.nn.qat.Conv2d"
    assert (weight["dtype"], weight["flops"]) == ("qint8", "5184(100.00%)")
    quant = next(row for row in table.records() if row["fake_stub_type"] == "output")
    assert quant["flops"] == "0(0%)"


def test_the_share_of_flops_is_of_the_whole_model_also_with_a_filter() -> None:
    x = torch.rand(1, 3, 8, 8)
    model = calibrated(Block(), x)
    whole = one_table(model, x)["conv weight"]["flops"]
    assert one_table(model, x, prefixes=("conv",))["conv weight"]["flops"] == whole
    assert whole.startswith(f"{8 * 8 * 9 * 64}(")
    flops = {name: row["flops"] for name, row in one_table(model, x).items()}
    assert flops["_generated_add_0 output"] == "0(0%)"
    shares = {name.split()[0]: float(f[f.index("(") + 1 : -2]) for name, f in flops.items()}
    assert sum(shares.values()) == pytest.approx(100, abs=0.02)  # two decimals each


@pytest.mark.parametrize("metric", ["ATOL", "COSINE", "SQNR"])
def test_rows_are_sorted_by_the_gain_in_the_metrics_direction(metric: str) -> None:
    x = torch.rand(2, 3, 8, 8)
    rows = one_table(calibrated(Block(), x), x, metric)
    gains = [row[f"qint8-qint16_{metric}"] for row in rows.values()]
    assert gains == sorted(gains, reverse=True)
    assert all(gain > 0 for gain in gains)


def test_prefixes_and_types_together_mean_both() -> None:
    x = torch.rand(1, 3, 8, 8)
    model = calibrated(Block(), x)
    assert set(one_table(model, x, types=(nn.Conv2d,))) == {"stem.0 weight", "conv weight"}
    assert set(one_table(model, x, types=(Conv2d,))) == {"stem.0 weight", "conv weight"}
    assert set(one_table(model, x, prefixes=("conv",), types=(nn.Conv2d,))) == {"conv weight"}
    assert set(one_table(model, x, types=(torch.sigmoid,))) == {"_generated_sigmoid_0 output"}
    assert set(one_table(model, x, prefixes="conv", types=nn.Conv2d)) == {"conv weight"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prefixes": ("stem", "haed")}, "no operator's name begins with 'haed'; near it: head"),
        ({"prefixes": ("zzz",)}, r"begins with 'zzz'; there are _input_0_quant, stem\.0, .* more"),
        ({"types": (nn.LSTM,)}, r"is of the type <class .*LSTM'>; this model has: .*nn\.qat\.Add"),
        ({"prefixes": ("stem.1",)}, r"stem\.1 have no fake-quantize of their own"),
        ({"prefixes": ("conv",), "types": (nn.Linear,)}, "both one of the prefixes"),
        ({"prefixes": ()}, "leave them out to rank everything"),
    ],
)
def test_a_filter_that_nothing_answers_to_is_refused(options: Any, message: str) -> None:
    x = torch.rand(1, 3, 8, 8)
    model = calibrated(Block(), x)
    for function in (sensitivity_lists, partial(sensitivity_tables, case="0")):
        with pytest.raises(AnalysisError, match=message):
            function(model, as_inputs(x), Metric.ATOL, **options)


def test_a_filter_for_another_branch_gives_an_empty_table() -> None:
    class Tasks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 2)

        def forward(self, x: Tensor, task: str) -> Tensor:
            return self.a(x) if task == "a" else self.b(x)

    x = torch.rand(2, 3)
    calls = [Inputs(x, task="a"), Inputs(x, task="b")]
    model = prepare(Tasks().eval(), calls)
    set_fake_quantize(model.eval(), FakeQuantState.CALIBRATION)
    for call in calls:
        model(*call.args, **call.kwargs)
    set_fake_quantize(model, FakeQuantState.VALIDATION)
    found = [
        sensitivity_tables(model, call, Metric.ATOL, "0", prefixes="b", shown=False)
        for call in calls
    ]
    assert found[0] == {}
    assert [row[0] for row in found[1][""].rows] == ["b"]


def test_output_names_select_and_unknown_ones_are_refused() -> None:
    args = (torch.rand(1, 3, 4, 4), torch.tensor([1, 2]))
    model = calibrated(Detector(), args)
    found = sensitivity_tables(model, as_inputs(args), Metric.ATOL, "0", shown=False)
    assert list(found) == ["boxes", "aux-k-0"]  # A16, A18: None skipped, integers pass
    only = sensitivity_tables(
        model, as_inputs(args), Metric.ATOL, "0", output_names=("boxes",), shown=False
    )
    assert list(only) == ["boxes"]
    alone = sensitivity_tables(
        model, as_inputs(args), Metric.ATOL, "0", output_names="boxes", shown=False
    )
    assert alone["boxes"].rows == only["boxes"].rows
    with pytest.raises(AnalysisError, match=r"no output named \['nope'\]; this model has: \['aux"):
        sensitivity_tables(model, as_inputs(args), Metric.ATOL, "0", output_names=("nope",))


def test_post_process_comes_before_the_metric() -> None:
    x = torch.tensor([[1.0, 0.3]])
    model = calibrated(Sum(), x)
    plain = one_table(model, x)["fc weight"]["qint8_ATOL"]
    tenfold = one_table(model, x, post_process=lambda y: 10 * y)["fc weight"]["qint8_ATOL"]
    # float32: the factor is exact only up to one rounding of the two outputs near 13
    assert tenfold == pytest.approx(10 * plain, rel=1e-3)


def test_a_metric_of_scope_all_gets_whole_outputs() -> None:
    x = torch.rand(1, 3, 4, 4)
    args = (x, torch.tensor([1, 2]))
    model = calibrated(Detector(), args)

    @Metric.register("test_boxes", False, "all")
    def boxes(a: Any, b: Any) -> Tensor:
        assert a.ids.tolist() == [2, 3]
        return (a.boxes - b.boxes).abs().max()

    try:
        found = sensitivity_tables(model, as_inputs(args), Metric.test_boxes, "0", shown=False)
    finally:
        Metric.unregister("test_boxes")
    assert list(found) == ["all"]
    per_tensor = sensitivity_tables(model, as_inputs(args), Metric.ATOL, "0", shown=False)
    by_all = {(r["op_name"], r["fake_stub_type"]): r for r in found["all"].records()}
    for row in per_tensor["boxes"].records():
        key = row["op_name"], row["fake_stub_type"]
        # float32 scale or value against the float64 formula: the last bits differ
        assert by_all[key]["qint8_test_boxes"] == pytest.approx(row["qint8_ATOL"], rel=1e-6)


def test_huge_range_gains_the_ratio_of_the_scales() -> None:
    """A38."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 2, 1), nn.ReLU())
    x = torch.rand(1, 3, 8, 8)
    with torch.no_grad():
        model[2].bias.zero_()
        model[2].weight.abs_()
        model[2].weight.mul_(8000 / model(x).max())
    prepared = calibrated(model, x)
    row = one_table(prepared, x)["3 output"]
    # worst rounding errors are half a step of 8000 / 127.5 and of 8000 / 32767.5
    assert row["qint8_ATOL"] == pytest.approx(8000 / 255, rel=0.05)
    assert row["qint8_ATOL"] / row["qint16_ATOL"] == pytest.approx(257, rel=0.1)


def test_huge_range_ranks_first_where_all_else_is_on_its_grid() -> None:
    """A38."""
    last = nn.Conv2d(2, 1, 1, bias=False)
    last.weight.data.copy_(torch.tensor([8000.0, -4000.0]).reshape(1, 2, 1, 1))
    model = nn.Sequential(QuantStub(scale=1 / 128), last)
    x = torch.randint(0, 65, (1, 2, 8, 8)) / 128  # codes of the stub; weights are codes of theirs
    x[0, :, 0, 0] = torch.tensor([1.0, 0.0]) * 127 / 128
    ports = {"dtype": {"output": qint8}, "threshold": {"weight": 8000 * 128 / 100}}
    setter = QconfigSetter(get_qconfig(), [ModuleNameTemplate({"": qint8, "1": ports})])
    table = one_table(calibrated(model, x, setter=setter), x)
    assert next(iter(table)) == "1 output"
    scale = 8000 * 127 / 128 / 127.5
    assert scale / 4 < table["1 output"]["qint8_ATOL"] <= scale / 2 * (1 + 1e-3)
    others = [row["qint8_ATOL"] for name, row in table.items() if name != "1 output"]
    assert others
    assert max(others) <= 1e-2  # float32 noise of sums up to 8000


def test_old_lists_hold_the_own_dtype_most_sensitive_first() -> None:
    x = torch.tensor([[1.0, 0.3]])
    model = calibrated(Sum(), x)
    lists = sensitivity_lists(model, as_inputs(x), Metric.ATOL, shown=False)
    (first, second) = lists[""]
    assert first[:3] == ["_input_0_quant", "output", "qtune.nn.qat.QuantStub"]
    assert first[3] == pytest.approx(0.75 * STEP8, **CLOSE)
    assert first[4:] == ["qint8", "0(0%)"]
    assert second[:2] == ["fc", "weight"]
    cosine = sensitivity_lists(model, as_inputs(x), Metric.COSINE, shown=False)[""]
    assert [row[3] for row in cosine] == sorted(row[3] for row in cosine)


def test_a_fake_quantize_without_data_is_named() -> None:
    model = prepare(Sum(), torch.ones(1, 2))
    with pytest.raises(NotCalibratedError, match="_input_0_quant output, fc weight"):
        sensitivity_tables(model, Inputs(torch.ones(1, 2)), Metric.ATOL, "0")


def test_float_and_wrapped_models_are_refused_by_name() -> None:
    with pytest.raises(AnalysisError, match="got a Sum; pass the calib model itself"):
        sensitivity_tables(Sum(), Inputs(torch.ones(1, 2)), Metric.ATOL, "0")


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_everything_is_restored_after_success_and_error(error: type[BaseException]) -> None:
    x = torch.rand(1, 3, 8, 8)
    model = calibrated(Block(), x)
    model.head.train()  # flags of single modules come back too
    before = fingerprint(model)
    one_table(model, x)
    assert_same(before, model)
    calls = []

    @Metric.register("test_fails", False, "pertensor")
    def fails(a: Tensor, b: Tensor) -> float:
        calls.append(a)
        if len(calls) > 5:
            raise error("stop")
        return 0.0

    try:
        with pytest.raises(error):
            one_table(model, x, "test_fails")
    finally:
        Metric.unregister("test_fails")
    assert_same(before, model)


def test_random_models_see_the_same_numbers_in_every_variant() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x) + torch.rand(1, 4))

    x = torch.rand(2, 4)
    rows = one_table(calibrated(Noisy(), x), x)
    # beside what clips (at borders half an int8 step apart) int16 leaves about 1e-4; other noise
    # would show as errors of up to 1
    assert max(abs(r["qint16_ATOL"] - r["clip_ATOL"]) for r in rows.values()) < 1e-2


def test_empty_batch_is_not_available_and_not_nan() -> None:
    """A06."""
    x = torch.rand(2, 3, 8, 8)
    rows = one_table(calibrated(Block(), x), x[:0])
    assert {row["qint8_ATOL"] for row in rows.values()} == {None}
    assert {row["qint8-qint16_ATOL"] for row in rows.values()} == {None}


def test_gain_follows_the_metric() -> None:
    # 0.5 - 0.2 in binary floating point
    assert gain_of(Metric.ATOL, 0.5, 0.2) == pytest.approx(0.3)
    assert gain_of(Metric.COSINE, 0.5, 0.75) == 0.25
    assert gain_of(Metric.SQNR, math.inf, math.inf) == 0.0
    assert math.isnan(gain_of(Metric.ATOL, math.nan, 0.1) or 0.0)
    assert gain_of(Metric.ATOL, None, 0.1) is None


def test_gain_in_decibels_is_that_of_the_noise() -> None:
    # noise of 1/100 and 1/100000 of the signal, up to a rounding of the power
    assert gain_of(Metric.SQNR, 20.0, 50.0) == pytest.approx(0.00999)
    loud, quiet = gain_of(Metric.SQNR, 20.0, 60.0), gain_of(Metric.SQNR, 50.0, 98.0)
    assert loud is not None
    assert quiet is not None
    assert loud > quiet  # although 40 dB are less than 48
    assert gain_of(Metric.SQNR, 10.0, math.inf) == pytest.approx(0.1)  # the same
    assert gain_of(Metric.SQNR, -math.inf, 10.0) == math.inf
    assert gain_of(Metric.SQNR, -5000.0, 10.0) == math.inf  # beyond float64
    assert math.isnan(gain_of(Metric.SQNR, math.nan, 10.0) or 0.0)


def test_an_own_metric_in_decibels_ranks_by_noise_too() -> None:
    x = torch.rand(2, 3, 8, 8)
    model = calibrated(Block(), x)

    @Metric.register("test_snr", True, "pertensor", decibels=True)
    def snr(a: Tensor, b: Tensor) -> float:
        return Metric.SQNR.function(a, b)  # type: ignore[no-any-return]

    try:
        own = one_table(model, x, "test_snr")
    finally:
        Metric.unregister("test_snr")
    assert list(own) == list(one_table(model, x, "SQNR")) == list(one_table(model, x, "MSE"))


def test_ports_name_every_fake_quantize() -> None:
    model = calibrated(Block(), torch.rand(1, 3, 8, 8))
    names = [port.name for port in ports(model)]
    assert len(names) == len(set(names))
    assert {"stem.0 weight", "stem.2 output", "head weight"} <= set(names)
    assert "stem.0 output" not in names  # a member of a fused group before the last

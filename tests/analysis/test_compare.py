"""Rows of the comparison per layer: columns, steps, and advice for planted faults."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qtune import qint8
from qtune.analysis.compare import Facts, LayerComparison, compare, selected
from qtune.analysis.facts import facts_of
from qtune.capture.inputs import as_inputs
from qtune.profiler.float_reference import observe_baseline
from qtune.profiler.metric import Metric
from qtune.profiler.observe import Observation, OpRecord, observe
from qtune.quantization import QconfigSetter, QuantStub, get_qconfig
from qtune.quantization.qconfig_setter import ModuleNameTemplate

from .nets import Block, calibrated

METRICS = [Metric.get_metric(m) for m in ("L1", "ATOL", "SQNR", "COSINE")]


def compared(model: nn.Module, prepared: Any, x: Any) -> LayerComparison:
    inputs = as_inputs(x)
    base = observe_baseline(model, prepared, inputs)
    facts = facts_of(model, prepared, "fake_quant", inputs, base, METRICS)
    return compare(base, observe(prepared, inputs), METRICS, facts)


def rows_of(comparison: LayerComparison) -> dict[str, Any]:
    return dict(zip(comparison.names, comparison.rows, strict=True))


def record(value: list[float], scale: float | None = None, dtype: str = "qint8") -> OpRecord:
    return OpRecord("op", "Type", torch.tensor(value), scale, dtype)


def only_row(base: OpRecord, other: OpRecord, facts: Facts | None = None) -> Any:
    runs = [Observation(None, {"op": r}) for r in (base, other)]
    return compare(runs[0], runs[1], METRICS, facts or Facts()).rows[0]


def test_columns_are_the_documented_ones_in_their_order() -> None:
    x = torch.rand(1, 3, 8, 8)
    model = Block().eval()
    found = compared(model, calibrated(model, x), x)
    assert found.columns == (
        *("mod_name", "base_op_type", "analy_op_type", "shape", "dtype", "qscale"),
        *("COSINE", "L1", "ATOL", "SQNR", "max_qscale_diff"),
        *("base_model_min", "analy_model_min", "base_model_max", "analy_model_max"),
        *("base_model_mean", "analy_model_mean", "same_in_qatbc_qdiff", "same_in_intbc_qdiff"),
        "advice",
    )
    assert list(found.to_pandas().columns) == list(found.columns)


def test_a_row_holds_what_can_be_computed_by_hand() -> None:
    row = only_row(record([1.0, -2.0, 0.5]), record([1.5, -2.0, 0.0], 0.25))
    assert (row["ATOL"], row["max_qscale_diff"]) == (0.5, 2.0)
    assert (row["base_model_min"], row["analy_model_max"]) == (-2.0, 1.5)
    # float64 sums in another order: only the last bits differ
    assert row["base_model_mean"] == pytest.approx(-0.5 / 3)
    assert (row["shape"], row["dtype"], row["qscale"]) == ("torch.Size([3])", "qint8", 0.25)


def test_functions_have_no_module_name_and_groups_end_quantized() -> None:
    x = torch.rand(2, 3, 8, 8)
    model = Block().eval()
    rows = rows_of(compared(model, calibrated(model, x), x))
    assert rows["_generated_sigmoid_0"]["mod_name"] == ""
    assert rows["_generated_sigmoid_0"]["base_op_type"] == "torch.sigmoid"
    gemm = rows["stem.0"]
    assert (gemm["mod_name"], gemm["dtype"], gemm["qscale"]) == ("stem.0", "torch.float32", None)
    assert gemm["base_op_type"] == "torch.nn.modules.conv.Conv2d"
    assert gemm["analy_op_type"] == "qtune.nn.qat.Conv2d"
    assert rows["stem.2"]["dtype"] == "qint8"
    assert rows["head"]["dtype"] == "torch.float32"


def test_a_clean_model_gets_no_advice() -> None:
    x = torch.rand(4, 3, 8, 8)
    model = Block().eval()
    found = compared(model, calibrated(model, x), x)
    assert {row["advice"] for row in found.rows} == {""}


def test_huge_range_is_advised() -> None:
    """A38."""
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 1, bias=False)).eval()
    x = torch.rand(1, 3, 8, 8)
    with torch.no_grad():
        model[1].weight.mul_(8000 / model(x).abs().max())
    setter = QconfigSetter(get_qconfig(), [ModuleNameTemplate({"": qint8, "1": qint8})])
    rows = rows_of(compared(model, calibrated(model, x, setter=setter), x))
    row = rows["1"]
    assert row["dtype"] == "qint8"
    assert row["qscale"] == pytest.approx(8000 / 127.5, rel=1e-6)  # one float32 rounding
    assert "Total data range" in row["advice"]
    assert "maybe too large for quantization." in row["advice"]
    assert "not high precision" in row["advice"]
    assert rows["0"]["advice"] == ""


def test_a_range_that_calibration_did_not_see_is_a_clamp_error_at_its_owner_only() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pool = nn.MaxPool2d(2)
            self.fc = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.pool(x).flatten(1))

    x = torch.rand(2, 1, 4, 4)
    model = Net().eval()
    rows = rows_of(compared(model, calibrated(model, x), 4 * x))
    assert "Current scale does not cover the data range" in rows["_input_0_quant"]["advice"]
    assert rows["pool"]["dtype"] == "qint8"  # keeps its input's scale: the advice is there
    assert rows["pool"]["advice"] == ""


def test_fixed_scales_are_named_and_too_wide_ones_measured() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.quant = QuantStub()
            self.fc = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.quant(x))

    x = torch.linspace(-1, 1, 8).view(2, 4)
    for threshold, wide in ((1.0, False), (16.0, True)):
        templates = [
            ModuleNameTemplate({"": qint8, "quant": {"dtype": qint8, "threshold": threshold}})
        ]
        model = Net().eval()
        prepared = calibrated(model, x, setter=QconfigSetter(get_qconfig(), templates))
        advice = rows_of(compared(model, prepared, x))["quant"]["advice"]
        assert f"Set fixed scale {threshold / 128:.7g}" in advice
        assert ("it covers 16 times the range" in advice) == wide


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_inf_and_nan_are_advised_whatever_the_dtype(value: float) -> None:
    row = only_row(record([1.0, value], None, "torch.float32"), record([1.0, 2.0], None))
    assert row["advice"] == "The result holds inf or NaN (baseline)"
    row = only_row(record([1.0, 2.0]), record([value, value], 0.1), Facts(owners=frozenset()))
    assert row["advice"] == "The result holds inf or NaN (analysed model)"


def test_empty_results_are_not_available() -> None:
    """A06."""
    row = only_row(record([]), record([], 0.5))
    assert row["ATOL"] is None
    assert row["max_qscale_diff"] is None
    assert row["base_model_min"] is None


def test_integer_results_have_no_distance() -> None:
    """A16."""
    ids = OpRecord("op", "Type", torch.tensor([3, 5]), None, "torch.int64")
    other = OpRecord("op", "Type", torch.tensor([3, 9]), None, "torch.int64")
    row = only_row(ids, other)
    assert (row["ATOL"], row["COSINE"], row["max_qscale_diff"]) == (None, None, None)
    assert (row["base_model_max"], row["analy_model_max"]) == (5.0, 9.0)


def test_selection_by_prefix_and_type() -> None:
    x = torch.rand(1, 3, 8, 8)
    run = observe(calibrated(Block(), x), as_inputs(x))
    assert selected(run, None, None) is None
    assert selected(run, ("stem",), (nn.Conv2d,)) == {"stem.0"}
    assert selected(run, None, (nn.Conv2d,)) == {"stem.0", "conv"}
    assert selected(run, None, (torch.sigmoid,)) == {"_generated_sigmoid_0"}


def test_a_comparison_prints_as_a_table_of_its_rows() -> None:
    x = torch.rand(1, 3, 8, 8)
    model = Block().eval()
    found = compared(model, calibrated(model, x), x)
    lines = [line for line in str(found).splitlines() if line.startswith("| ")]
    header, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert header == ["", *found.columns]
    expected = [[str(i), str(row["mod_name"])] for i, row in enumerate(found.rows)]
    assert [row[:2] for row in rows] == expected

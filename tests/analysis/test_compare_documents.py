"""compare_per_layer against the documents' print-out, and what has no row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune import qint8
from qtune.analysis.compare import Facts, compare, selected
from qtune.capture.inputs import Inputs
from qtune.errors import AnalysisError
from qtune.profiler import Metric, QuantAnalysis
from qtune.profiler.observe import observe
from qtune.profiler.record import Observation, OpRecord
from qtune.quantization import (
    DeQuantStub,
    FakeQuantState,
    QuantStub,
    get_qconfig,
    prepare,
    set_fake_quantize,
)
from qtune.quantization.qconfig_setter import (
    ConvDtypeTemplate,
    MatmulDtypeTemplate,
    ModuleNameTemplate,
    QconfigSetter,
)

from .nets import Block, calibrated

METRICS = [Metric.get_metric(m) for m in ("L1", "ATOL", "COSINE")]


class First(nn.Module):
    """The net of the documents' first script."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)
        self.relu = nn.ReLU()
        self.quant = QuantStub()
        self.dequant = DeQuantStub()

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.conv(self.quant(x)))
        x = F.interpolate(x, scale_factor=1.3, mode="bilinear", align_corners=False)
        return self.dequant(x)


def test_the_first_script_gives_the_print_out(tmp_path: Path) -> None:
    torch.manual_seed(0)
    data = torch.rand(1, 3, 32, 32)
    net = First()
    setting = [ModuleNameTemplate({"": qint8}), ConvDtypeTemplate(), MatmulDtypeTemplate()]
    calib = prepare(net, data, qconfig_setter=QconfigSetter(get_qconfig(), setting))
    set_fake_quantize(calib.eval(), FakeQuantState.CALIBRATION)
    calib(data)
    net.eval()
    set_fake_quantize(calib.eval(), FakeQuantState.VALIDATION)
    qa = QuantAnalysis(
        baseline_model=net,
        analysis_model=calib,
        analysis_model_type="fake_quant",
        device_ids=0,
        out_dir=str(tmp_path),
    )
    qa.set_bad_case(data)
    qa.run()
    found = qa.compare_per_layer()
    lines = (tmp_path / "compare_per_layer_out_0.txt").read_text().splitlines()
    cells = [[c.strip() for c in line.split("|")[1:-1]] for line in lines if line[:2] == "| "]
    assert cells[0] == [
        *("", "mod_name", "base_op_type", "analy_op_type", "shape", "dtype", "qscale"),
        *("COSINE", "L1", "ATOL", "max_qscale_diff", "base_model_min", "analy_model_min"),
        *("base_model_max", "analy_model_max", "base_model_mean", "analy_model_mean"),
        *("same_in_qatbc_qdiff", "same_in_intbc_qdiff", "advice"),
    ]
    rows = [dict(zip(cells[0], row, strict=True)) for row in cells[1:]]
    assert [row["mod_name"] for row in rows] == ["quant", "conv", "relu", "", "dequant"]
    sizes = [f"torch.Size([1, 3, {n}, {n}])" for n in (32, 32, 32, 41, 41)]
    assert [row["shape"] for row in rows] == sizes
    # the one difference: here only the last member of a fused group carries the fake-quantize
    dtypes = ["qint8", "torch.float32", "qint8", "qint8", "torch.float32"]
    assert [row["dtype"] for row in rows] == dtypes
    assert rows[0]["qscale"] == f"{float(data.max()) / 127.5:.7f}"
    assert rows[0]["max_qscale_diff"][:4] in ("0.49", "0.50")
    assert rows[1]["base_op_type"] == "torch.nn.modules.conv.Conv2d"
    assert rows[2]["base_op_type"] == "torch.nn.modules.activation.ReLU"
    assert rows[2]["qscale"] == rows[3]["qscale"]
    # the chip resizes by 32 / 41, torch by 1 / 1.3: tens of steps, as printed in the documents
    assert 10 < float(rows[3]["max_qscale_diff"]) < 60
    assert 0.98 < float(rows[3]["COSINE"]) < 0.999
    assert rows[4]["qscale"] == rows[4]["max_qscale_diff"] == ""
    assert all(row["advice"] == "" for row in rows)
    assert len(found) == 5


def test_what_has_no_row_is_listed_with_the_reason() -> None:
    def run(**values: Tensor) -> Observation:
        return Observation(None, {n: OpRecord(n, "T", v, None, "f") for n, v in values.items()})

    base = run(a=torch.ones(2), b=torch.ones(3), only_base=torch.ones(1))
    other = run(a=torch.ones(2), b=torch.ones(4), only_other=torch.ones(1))
    found = compare(base, other, METRICS, Facts())
    assert found.names == ("a",)
    assert found.left_out == {
        "b": "the results have different shapes, (3,) and (4,)",
        "only_other": "the baseline has no operator of this name",
        "only_base": "the analysed model has no operator of this name",
    }
    assert found.to_dict()["left_out"] == dict(found.left_out)


def test_a_selection_of_nothing_names_what_is_near() -> None:
    x = torch.rand(1, 3, 8, 8)
    run = observe(calibrated(Block(), x), Inputs(x))
    with pytest.raises(AnalysisError, match=r"prefixes \('sten.0',\).*stem\.0"):
        selected(run, ("sten.0",), None)
    with pytest.raises(AnalysisError, match="no operator fits types .*LSTM"):
        selected(run, None, (nn.LSTM,))
    assert selected(run, "stem", None) == {"stem.0", "stem.1", "stem.2"}


def test_metrics_of_the_user_have_columns_and_those_of_whole_outputs_have_none() -> None:
    metrics: list[Any] = [*METRICS]
    Metric.register("own_mean", False, "pertensor")(lambda a, b: (a - b).abs().mean())
    Metric.register("own_all", False, "all")(lambda a, b: 0.0)
    try:
        metrics += [Metric.get_metric("own_mean"), Metric.get_metric("own_all")]
        x = torch.rand(1, 3, 8, 8)
        run = observe(calibrated(Block(), x), Inputs(x))
        found = compare(run, run, metrics, Facts())
    finally:
        Metric.unregister("own_mean")
        Metric.unregister("own_all")
    assert found.columns[6:11] == ("COSINE", "L1", "ATOL", "own_mean", "max_qscale_diff")
    assert {row["own_mean"] for row in found.rows} == {0.0}


def test_complex_bool_and_integer_results_have_rows() -> None:
    values = {
        "complex": torch.tensor([1 + 2j, -3j]),
        "mask": torch.tensor([True, False]),
        "ids": torch.tensor([3, 9]),
    }
    run = Observation(None, {n: OpRecord(n, "T", v, None, "d") for n, v in values.items()})
    found = compare(run, run, METRICS, Facts())
    rows = dict(zip(found.names, found.rows, strict=True))
    assert (rows["complex"]["base_model_min"], rows["complex"]["ATOL"]) == (-3.0, 0.0)
    assert (rows["mask"]["base_model_max"], rows["mask"]["ATOL"]) == (1.0, None)
    assert (rows["ids"]["base_model_mean"], rows["ids"]["COSINE"]) == (6.0, None)


def test_run_on_cpu_holds_for_the_own_errors_too(tmp_path: Path) -> None:
    net, x = Block().eval(), torch.rand(2, 3, 8, 8)
    qa = QuantAnalysis(net, calibrated(net, x), "fake_quant", out_dir=str(tmp_path))
    qa.set_bad_case(x)
    qa.run()
    rows = qa.compare_per_layer().rows
    qa._session.device = torch.device("meta")  # where nothing has a value, in place of a GPU
    qa.run(run_on_cpu=True)
    assert qa.compare_per_layer().rows == rows

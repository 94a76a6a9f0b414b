"""Calls and files of the older toolchain (plugin guide, "QuantAnalysis Class")."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from qtune.analysis.quant_analysis import QuantAnalysis
from qtune.errors import AnalysisError
from qtune.profiler.metric import Metric
from qtune.quantization import convert, get_qconfig, prepare
from qtune.quantization.qconfig_setter import (
    ModuleNameTemplate,
    QconfigSetter,
    SensitivityTemplate,
)

from .nets import Block, calibrated

DATA = [torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(i)) for i in range(4)]
HEAD = ["mod_name", "base_op_type", "analy_op_type", "shape", "quant_dtype", "qscale"]
METRICS = ["Cosine", "MSE", "L1", "KL", "SQNR", "Atol", "Rtol"]
STATISTICS = [
    f"{side}_model_{what}" for what in ("min", "max", "mean", "var") for side in ("base", "analy")
]
COLUMNS = [*HEAD, *METRICS, *STATISTICS]
OLD = {
    "abnormal_layer_advisor.csv",
    "abnormal_layer_advisor.txt",
    "badcase.pt",
    "badcase.txt",
    "compare_per_layer_out.csv",
    "compare_per_layer_out.txt",
    "profiler.html",
    "sensitive_ops.pt",
    "sensitive_ops.txt",
}


class Setting:
    def __init__(self, folder: Path) -> None:
        self.model = Block().eval()
        self.calib = calibrated(self.model, *DATA)
        self.folder = folder

    def analysis(self, kind: str = "fake_quant") -> QuantAnalysis:
        analysed = convert(self.calib) if kind == "quantized" else self.calib
        baseline = self.calib if kind == "quantized" else self.model
        return QuantAnalysis(baseline, analysed, kind, out_dir=str(self.folder / kind))


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path)


def old_files(qa: QuantAnalysis) -> set[str]:
    return OLD & {path.name for path in qa.out_dir.iterdir()}


def whole_session(qa: QuantAnalysis, **find: Any) -> Any:
    qa.auto_find_bad_case(DATA, **find)
    qa.run()
    qa.compare_per_layer()
    return qa.sensitivity()


def test_a_session_of_today_writes_none_of_the_older_files(setting: Setting) -> None:
    qa = setting.analysis()
    whole_session(qa)
    assert not old_files(qa)


def test_an_old_parameter_brings_the_older_files_from_then_on(setting: Setting) -> None:
    qa = setting.analysis()
    with pytest.warns(DeprecationWarning, match="metric is deprecated"):
        whole_session(qa, metric="L1")
    assert old_files(qa) == OLD


def test_the_older_type_is_an_older_session(setting: Setting) -> None:
    qa = setting.analysis("quantized")
    whole_session(qa)
    assert old_files(qa) == OLD


def test_metric_and_device_by_their_old_places(setting: Setting) -> None:
    qa = setting.analysis()
    with pytest.warns(DeprecationWarning, match="is deprecated and has no effect") as warned:
        qa.auto_find_bad_case(DATA, 3, "Cosine", torch.device("cpu"))  # type: ignore[arg-type]
    assert [str(w.message).split(";")[0].split(": ")[1].split()[0] for w in warned] == [
        "metric",
        "device",
    ]
    report = qa.badcase_report
    assert report is not None
    assert len(report.values[""]["ATOL"]) == 3
    with pytest.raises(AnalysisError, match=r"a tuple of names, got 'memory'; pass \('memory',\)"):
        qa.auto_find_bad_case(DATA, 3, "memory")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["Cosine", "cosine", "L1", "MSE", "KL", "SQNR", "Atol"])
def test_metrics_in_the_older_spelling(setting: Setting, name: str) -> None:
    qa = setting.analysis()
    qa.set_bad_case(DATA[0])
    rows = qa.sensitivity(name, prefixes=("conv", "head"))[""]
    known = Metric.get_metric(name.upper())
    badness = [known.badness(row[3]) for row in rows]
    assert badness == sorted(badness, reverse=True)
    assert bool(old_files(qa)) == (name != known.name)


def test_the_older_ranking_has_activation_weight_and_both(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 1), nn.Sigmoid()).eval()
    qa = QuantAnalysis(model, calibrated(model, *DATA), "fake_quant", out_dir=str(tmp_path))
    qa.set_bad_case(DATA[0])
    new = qa.sensitivity("cosine")[""]
    old = torch.load(qa.out_dir / "sensitive_ops.pt")
    assert {row[1] for row in old} == {"activation", "weight", "both"}
    values = [row[3] for row in old]
    assert values == sorted(values)  # a cosine: the smallest is the worst
    names = {"activation": "output", "weight": "weight"}
    single = [[name, names[kind], op, value] for name, kind, op, value in old if kind in names]
    assert sorted(single) == sorted(row[:4] for row in new if row[1] in names.values())
    both = {row[0]: row[3] for row in old if row[1] == "both"}
    alone = {(row[0], row[1]): row[3] for row in old}
    assert set(both) == {n for n, k in alone if k == "weight" and (n, "activation") in alone}
    lines = (qa.out_dir / "sensitive_ops.txt").read_text().splitlines()
    assert lines[0].split() == ["op_name", "sensitive_type", "op_type", "COSINE"]
    assert len(lines) == len(old) + 2


def test_the_older_ranking_raises_ports_in_prepare(setting: Setting) -> None:
    qa = setting.analysis()
    qa.set_bad_case(DATA[0])
    qa.sensitivity("cosine")
    old = torch.load(qa.out_dir / "sensitive_ops.pt")
    template = SensitivityTemplate(old, 1)
    setter = QconfigSetter(get_qconfig(), [ModuleNameTemplate({"": "qint8"}), template])
    raised = prepare(setting.model, DATA[0], setter)
    op = raised.get_submodule(old[0][0])
    dtypes = {str(q.dtype) for q in (op.activation_post_process, op.weight_fake_quant) if q}
    assert "qint16" in dtypes


def test_the_older_comparison_has_the_documented_columns(setting: Setting) -> None:
    qa = setting.analysis("quantized")
    qa.set_bad_case(DATA[0])
    qa.run()
    new = qa.compare_per_layer()
    with (qa.out_dir / "compare_per_layer_out.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0])[1:] == COLUMNS
    assert len(rows) == len(new)
    assert [float(row["Atol"]) for row in rows] == [row["ATOL"] for row in new.rows]
    last = torch.load(sorted((qa.out_dir / "op_infos" / "analysis").glob("*.opinfo"))[-1])
    # both in float64, summed in another order at most
    assert float(rows[-1]["analy_model_var"]) == pytest.approx(
        float(last.output[0].double().var()), rel=1e-12
    )
    text = (qa.out_dir / "compare_per_layer_out.txt").read_text().splitlines()
    assert [cell.strip() for cell in text[1].split("|")[2:-1]] == COLUMNS
    assert "<svg" in (qa.out_dir / "profiler.html").read_text()


def test_abnormal_layers_are_listed_with_their_advice(tmp_path: Path) -> None:
    model = Block().eval()
    with torch.no_grad():
        model.stem[0].weight *= 8000
    calib = calibrated(model, *DATA)
    qa = QuantAnalysis(model, calib, "fake_quant", out_dir=str(tmp_path))
    qa.load_bad_case(saved(tmp_path, DATA[0]))
    qa.run()
    advised = [row for row in qa.compare_per_layer().rows if row["advice"]]
    assert advised
    with (tmp_path / "abnormal_layer_advisor.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["advice"] for row in rows] == [row["advice"] for row in advised]
    assert "too large for quantization" in (tmp_path / "abnormal_layer_advisor.txt").read_text()


def saved(folder: Path, value: Any) -> str:
    path = folder / "mine.pt"
    torch.save(value, path)
    return str(path)

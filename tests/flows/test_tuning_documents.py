"""The scripts of the documents about tuning, as their readers run them.

Sources: the tuning tool document (first page, losses, single operators, profilers) and the plugin
guide ("QuantAnalysis Class", older calls). The distributed script is in
``tests/analysis/test_distributed.py``, the profiler practice in ``test_profiler_practice.py``.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.quantization import DeQuantStub, QuantStub
from torch.utils.data import DataLoader

from qtune import qint8, qint16
from qtune.errors import AnalysisError
from qtune.nn.prepared import PreparedModel
from qtune.profiler import HbirModelProfiler, ModelProfiler, QuantAnalysis
from qtune.profiler.utils.entities import Metric
from qtune.quantization import get_qconfig, hbdk4, prepare, qconfig_template
from qtune.quantization.qconfig_setter import (
    ConvDtypeTemplate,
    MatmulDtypeTemplate,
    ModuleNameTemplate,
    QconfigSetter,
)

from .tuning import CASE_FILES, RUN_FILES, calibrated, names, tables

INT8 = [ModuleNameTemplate({"": qint8}), ConvDtypeTemplate(), MatmulDtypeTemplate()]


class Net(nn.Module):
    """The net of the first page."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.relu = nn.Conv2d(3, 3, 1), nn.ReLU()
        self.quant, self.dequant = QuantStub(), DeQuantStub()

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.conv(self.quant(x)))
        x = F.interpolate(x, scale_factor=1.3, mode="bilinear", align_corners=False)
        return self.dequant(x)


@pytest.fixture
def pair() -> tuple[nn.Module, PreparedModel]:
    torch.manual_seed(0)
    net = Net()
    setter = QconfigSetter(get_qconfig(), list(INT8))
    calib = calibrated(net, (torch.rand(1, 3, 32, 32),), qconfig_setter=setter)
    return net.eval(), calib


def test_the_first_page_over_a_loader(
    pair: tuple[nn.Module, PreparedModel], tmp_path: Path
) -> None:
    net, calib = pair
    loader = DataLoader([torch.rand(3, 32, 32) for _ in range(5)], batch_size=1)  # type: ignore[arg-type]
    qa = QuantAnalysis(
        baseline_model=net,
        analysis_model=calib,
        analysis_model_type="fake_quant",
        device_ids=0,
        out_dir=str(tmp_path / "floatvsqat"),
    )
    report = qa.auto_find_bad_case(loader, num_steps=100)
    assert list(report.output_to_badcase_info) == [""]
    qa.run()
    assert len(qa.compare_per_layer()) == 5
    case = report.worst(Metric.ATOL)
    (table,) = qa.sensitivity(use_sensitivity_v2=True)[""]
    assert [(row[0], row[2]) for row in sorted(table.rows)] == [
        ("conv", "weight"),
        ("quant", "output"),
        ("relu", "output"),
    ]
    # the resize of the chip is off by more than any dtype can mend: all three are tried
    goal = {"metric": Metric.ATOL, "threshold": 1e-4, "max_tuned_stubs": 10}
    tuned = qa.tune_bad_case(outputs_config={"": goal})
    assert not tuned
    found = tables("", f"case_{case}", f"tuned_case_{case}")
    assert names(qa.out_dir) == {*CASE_FILES, *RUN_FILES, *found, "sensitivity_v2_report.html"}
    text = (qa.out_dir / f"output__case_{case}_sensitive_ops.txt").read_text().splitlines()
    assert text[2].split()[5] == f"{table.rows[0][5]:.9f}"  # nine decimals, as printed
    qa.clean()
    assert "op_infos" not in names(qa.out_dir)


def test_the_first_page_with_an_exported_model(
    pair: tuple[nn.Module, PreparedModel], tmp_path: Path
) -> None:
    _, calib = pair
    data = torch.rand(1, 3, 32, 32)
    qa = QuantAnalysis(
        baseline_model=calib,
        analysis_model=hbdk4.export(calib, (data,)),
        analysis_model_type="export",
        device_ids=0,
        out_dir=str(tmp_path / "qatvshbir"),
    )
    qa.set_bad_case(data)
    qa.run()
    layers = qa.compare_per_layer()
    assert all(row["ATOL"] == 0 for row in layers.rows)  # export changes no number
    steps = [row["same_in_qatbc_qdiff"] for row in layers.rows]
    assert [step for step in steps if step is not None] == [0, 0, 0]
    assert {row[1] for row in qa.sensitivity()[""]} == {"output", "weight"}
    assert names(qa.out_dir) == {*RUN_FILES, "output__case_0_ATOL_sensitive_ops.txt"}
    with (qa.out_dir / "compare_per_layer_out_0.csv").open() as file:
        assert [row["mod_name"] for row in csv.DictReader(file)][-1] == "dequant"


class Labelled(nn.Module):
    """Logits, and the labels of the data as they came."""

    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = QuantStub(), DeQuantStub()
        self.conv, self.relu, self.fc = nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Linear(8, 5)

    def forward(self, x: Tensor, label: Tensor) -> dict[str, Tensor]:
        y = self.relu(self.conv(self.quant(x))).mean((2, 3))
        return {"logits": self.dequant(self.fc(y)), "label": label}


@pytest.fixture
def losses() -> Iterator[None]:
    @Metric.register("ce_loss_with_gt", False, "all")
    def ce_loss_with_gt(output1: Any, output2: Any) -> Tensor:
        return F.cross_entropy(output2["logits"], output1["label"])

    @Metric.register("distill_loss", False, "all")
    def pseudo_gt_ce_loss(output1: Any, output2: Any) -> Tensor:
        return F.cross_entropy(output2["logits"], output1["logits"].argmax(dim=-1))

    yield
    for name in ("ce_loss_with_gt", "distill_loss"):
        Metric.unregister(name)


@pytest.mark.parametrize("name", ["ce_loss_with_gt", "distill_loss"])
def test_a_loss_leads_through_the_whole_session(name: str, losses: None, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Labelled().eval()
    loader = [(torch.rand(2, 3, 8, 8), torch.randint(0, 5, (2,))) for _ in range(4)]
    metric = Metric.get_metric(name)
    qa = QuantAnalysis(
        net, calibrated(net, loader[0]), "fake_quant", out_dir=str(tmp_path), metric_list=[metric]
    )
    report = qa.auto_find_bad_case(loader, topk=2)
    assert list(report.output_to_badcase_info) == ["all"]
    assert getattr(Metric, name) == metric
    with pytest.raises(AnalysisError, match=rf"searched with \['{name}'\]. Pass metric="):
        qa.run()  # ATOL by default, which nobody searched with
    qa.run(metric=metric)
    assert len(qa.compare_per_layer())
    ablation = qa.sensitivity(metric, use_sensitivity_v2=True)
    assert [len(found) for found in ablation.values()] == [2]
    cases = (*(f"case_{index}" for index in report.indices), "case_mean", "case_worst")
    assert tables("all", *cases) <= names(tmp_path)
    quick = qa.sensitivity(metric, use_sensitivity_v2=True, sensitivity_method="grad_x_error")
    columns = quick["all"][0].columns
    assert columns[5:] == ["GRAD_X_ERROR", "GRAD_MAGNITUDE", "ERROR_MAGNITUDE"]
    tuned = qa.tune_bad_case(
        {"all": {"metric": metric, "threshold": 1e-3, "max_tuned_stubs": 1}},
        skip_prefix={"conv": ["output", "weight"]},
    )
    assert not tuned
    assert tables("all", f"tuned_case_{report.indices[0]}") <= names(tmp_path)


def test_profilers_before_the_analysis_take_the_place_of_run(
    pair: tuple[nn.Module, PreparedModel], tmp_path: Path
) -> None:
    net, calib = pair
    data = torch.rand(1, 3, 32, 32)
    qat_hbir = hbdk4.export(calib, (data,))
    folders = {name: str(tmp_path / name) for name in ("float", "calib", "hbir")}
    for name, model in (("float", net), ("calib", calib)):
        with ModelProfiler(model, folders[name]) as p:
            model(data)
        p.get_info_manager().table()
    with HbirModelProfiler(qat_hbir, folders["hbir"]) as p:
        qat_hbir[0](data)
    p.get_info_manager.table()  # the plugin guide writes it without the call
    for folder in folders.values():
        lines = (Path(folder) / "statistic.txt").read_text().splitlines()
        head = next(line for line in lines if line.startswith("| Index"))
        assert [cell.strip() for cell in head.split("|")[1:-1]] == [
            *("Index", "Op Name", "Mod Name", "Attr", "Dtype", "Scale"),
            *("Min", "Max", "Mean", "Var", "Shape"),
        ]
        assert sum(line.startswith("| 4 ") for line in lines) == 4  # in and out, in both tables
    qa = QuantAnalysis(net, calib, "fake_quant", out_dir=str(tmp_path / "out"))
    qa.set_model_profiler_dir(folders["float"], folders["calib"])
    assert [row["mod_name"] for row in qa.compare_per_layer().rows][:2] == ["quant", "conv"]
    qa = QuantAnalysis(calib, qat_hbir, "export", out_dir=str(tmp_path / "out"))
    qa.set_model_profiler_dir(folders["calib"], folders["hbir"])
    assert all(row["ATOL"] == 0 for row in qa.compare_per_layer().rows)


def test_what_an_operator_took_and_gave_is_read_back(
    pair: tuple[nn.Module, PreparedModel], tmp_path: Path
) -> None:
    net, calib = pair
    qa = QuantAnalysis(net, calib, "fake_quant", out_dir=str(tmp_path))
    qa.set_bad_case(torch.rand(1, 3, 32, 32))
    qa.run()
    opinfo = torch.load(next(tmp_path.glob("op_infos/baseline/*conv*")), weights_only=False)
    values = opinfo.output[0].as_subclass(torch.Tensor).flatten().cpu().numpy()
    assert values.shape == (3 * 32 * 32,)
    with torch.no_grad():  # a model of the one operator gives what was seen
        assert torch.equal(net.conv(opinfo.input[0]), opinfo.output[0])


OLD_SETTERS = (
    "calibration_8bit_weight_16bit_act",
    "qat_8bit_weight_16bit_act",
    "qat_8bit_weight_16bit_fixed_act",
)


def test_the_older_ranking_by_place_and_its_setters(
    pair: tuple[nn.Module, PreparedModel], tmp_path: Path
) -> None:
    net, calib = pair
    data = torch.rand(1, 3, 32, 32)
    qa = QuantAnalysis(net, calib, "fake_quant", out_dir=str(tmp_path))
    qa.set_bad_case(data)
    with pytest.warns(DeprecationWarning, match="(device|reserve) is deprecated") as warned:
        found = qa.sensitivity(torch.device("cpu"), "Cosine", True)  # type: ignore[arg-type]
    assert len(warned) == 2
    table = torch.load(tmp_path / "sensitive_ops.pt")
    assert [row[0] for row in table] == [row[0] for row in found[""]]
    lines = (tmp_path / "sensitive_ops.txt").read_text().splitlines()
    assert lines[0].split() == ["op_name", "sensitive_type", "op_type", "COSINE"]
    assert sum("<class 'qtune.nn.qat.ReLU'>" in line for line in lines) == 1
    for name in OLD_SETTERS:
        full = f"sensitive_op_{name}_qconfig_setter"
        for share in ({"ratio": 0.2}, {"topk": 1}):
            setter = getattr(qconfig_template, full)(table, **share)
            default = qconfig_template.default_calibration_qconfig_setter
            raised = prepare(net, data, qconfig_setter=(setter, default))
            ports = dict(raised.named_modules())
            kind = "activation_post_process" if table[0][1] == "activation" else "weight_fake_quant"
            assert ports[f"{table[0][0]}.{kind}"].dtype == qint16

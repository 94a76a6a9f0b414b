"""Stage against stage, tasks among the inputs, post-processing: the profiler practice, 2.2 and 2.3.

The document cuts its scripts off after their imports; these do what its sentences say.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.quantization import DeQuantStub, QuantStub

from qtune.bpu.compiler import load, save
from qtune.errors import AnalysisError
from qtune.modes import get_consistency_level
from qtune.profiler import QuantAnalysis
from qtune.profiler.utils.entities import Metric
from qtune.qat_mode import ConsistencyStrategy
from qtune.quantization import hbdk4, qconfig_template

from .tuning import RUN_FILES, calibrated, names


class Branches(nn.Module):
    """A dict of tensors, and the tasks whose branches are taken."""

    def __init__(self) -> None:
        super().__init__()
        self.quant, self.quant2, self.dequant = QuantStub(), QuantStub(), DeQuantStub()
        self.back, self.relu = nn.Conv2d(3, 8, 1), nn.ReLU()
        self.heads = nn.ModuleDict({"det": nn.Conv2d(8, 4, 1), "seg": nn.Conv2d(8, 2, 1)})

    def forward(self, inputs: dict[str, Tensor], task: list[str]) -> dict[str, Tensor]:
        y = torch.sigmoid(self.relu(self.back(self.quant(inputs["img"]))))
        y = y * self.quant2(inputs["weight"])
        return {name: self.dequant(self.heads[name](y)) for name in task}


class TaskInside(Branches):
    """The tasks are an entry of the dict."""

    def forward(self, inputs: dict[str, Any]) -> dict[str, Tensor]:  # type: ignore[override]
        return super().forward(inputs, inputs["task"])


class Chain:
    """All stages of one model, and its data with and without the tasks."""

    def __init__(self, cls: type[Branches]) -> None:
        torch.manual_seed(0)
        self.is_inside = cls is TaskInside
        ConsistencyStrategy.set_consistency_level(2)
        self.float_pt = cls().eval()
        self.calls = [self.call(self.tensors()) for _ in range(3)]
        setter = qconfig_template.calibration_8bit_weight_16bit_act_qconfig_setter
        self.calib = calibrated(self.float_pt, *self.calls, qconfig_setter=setter)
        self.pre_export = hbdk4.pre_export(self.calib)
        self.qat_bc = hbdk4.export(self.calib, self.calls[0])
        self.quantized_bc = hbdk4.convert(self.qat_bc, "nash-e")

    def tensors(self) -> dict[str, Tensor]:
        return {"img": torch.rand(1, 3, 8, 8), "weight": torch.rand(1, 8, 8, 8)}

    def call(self, tensors: dict[str, Tensor]) -> tuple[Any, ...]:
        task = ["det", "seg"]
        return ({**tensors, "task": task},) if self.is_inside else (tensors, task)


@pytest.fixture
def _consistency() -> Iterator[None]:
    level = get_consistency_level()
    yield
    ConsistencyStrategy.set_consistency_level(level)


@pytest.mark.usefixtures("_consistency")
@pytest.mark.parametrize("cls", [Branches, TaskInside])
def test_each_stage_against_the_one_before(cls: type[Branches], tmp_path: Path) -> None:
    chain = Chain(cls)
    for bc in ("qat_bc", "quantized_bc"):
        save(getattr(chain, bc), tmp_path / f"{bc}.bc")
        setattr(chain, bc, load(tmp_path / f"{bc}.bc"))
    stages = [
        ("float_pt", "calib", "fake_quant"),
        ("calib", "pre_export", "pre_export"),
        ("pre_export", "qat_bc", "export"),
    ]
    for baseline, analysed, kind in stages:
        models = getattr(chain, baseline), getattr(chain, analysed)
        qa = QuantAnalysis(*models, kind, out_dir=str(tmp_path / kind))
        qa.set_bad_case(chain.calls[0])
        qa.run()
        assert len(qa.compare_per_layer()) >= 8
        ranking = qa.sensitivity()
        assert list(ranking) == ["det", "seg"]
        files = {f"output_{name}_case_0_ATOL_sensitive_ops.txt" for name in ranking}
        assert names(qa.out_dir) == {*RUN_FILES, *files}
    # torch and .bc in turn: here the .bc gets its tensors as a list
    qa.set_bad_case(chain.calls[0])
    qa.run(run_baseline_model=True, run_analysis_model=False)
    flat = chain.calls[0][0]
    qa.set_bad_case((flat["img"], flat["weight"]))
    qa.run(run_baseline_model=False, run_analysis_model=True)
    assert all(row["ATOL"] == 0 for row in qa.compare_per_layer().rows)


@pytest.mark.usefixtures("_consistency")
@pytest.mark.parametrize("cls", [Branches, TaskInside])
def test_two_bc_without_the_task_then_the_ranking_of_a_torch_model(
    cls: type[Branches], tmp_path: Path
) -> None:
    chain = Chain(cls)
    qa = QuantAnalysis(chain.qat_bc, chain.quantized_bc, "convert", out_dir=str(tmp_path))
    report = qa.auto_find_bad_case([chain.tensors() for _ in range(3)])
    qa.run()
    assert len(qa.compare_per_layer())
    with pytest.raises(AnalysisError, match="needs a torch model"):
        qa.sensitivity()
    qa = QuantAnalysis(chain.pre_export, chain.quantized_bc, "convert", out_dir=str(tmp_path))
    qa.load_bad_case()  # the torch model takes its tasks from what was exported
    ranking = qa.sensitivity()
    assert list(ranking) == ["det", "seg"]
    case = report.worst(Metric.ATOL, "det")
    assert f"output_det_case_{case}_ATOL_sensitive_ops.txt" in names(tmp_path)
    qa.run()
    assert all(row["base_op_type"].startswith("qtune.nn.") for row in qa.compare_per_layer().rows)


def post_process(outputs: dict[str, Tensor]) -> dict[str, Tensor]:
    score = torch.sigmoid(outputs["det"]).amax(1)
    return {"score": score, "keep": score > 0.5}


class PostProcess:
    def __init__(self, threshold: float) -> None:
        self.threshold = threshold

    def __call__(self, outputs: dict[str, Tensor]) -> dict[str, Tensor]:
        score = torch.sigmoid(outputs["det"]).amax(1)
        return {"score": score, "keep": score > self.threshold}


class WithPost(nn.Module):
    """The post-processing is part of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Branches()

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        return post_process(self.net(inputs, ["det"]))


@pytest.mark.usefixtures("_consistency")
@pytest.mark.parametrize("after", [post_process, PostProcess(0.5)])
def test_post_processing_is_applied_in_every_stage(after: Any, tmp_path: Path) -> None:
    chain = Chain(Branches)
    pairs = [
        (chain.float_pt, chain.calib, "fake_quant"),
        (chain.calib, chain.pre_export, "pre_export"),
        (chain.pre_export, chain.qat_bc, "export"),
        (chain.qat_bc, chain.quantized_bc, "convert"),
    ]
    for baseline, analysed, kind in pairs:
        qa = QuantAnalysis(
            baseline, analysed, kind, post_process=after, out_dir=str(tmp_path / kind)
        )
        report = qa.auto_find_bad_case(chain.calls)
        assert qa.output_names() == ["score"]
        assert list(report.exact_match) == ["keep"]
        qa.run()
        qa.compare_per_layer()
        if kind != "convert":
            assert list(qa.sensitivity()) == ["score"]


def test_post_processing_inside_of_the_model_has_rows(tmp_path: Path) -> None:
    net = WithPost().eval()
    data = {"img": torch.rand(1, 3, 8, 8), "weight": torch.rand(1, 8, 8, 8)}
    qa = QuantAnalysis(net, calibrated(net, (data,)), "fake_quant", out_dir=str(tmp_path))
    qa.set_bad_case(data)
    qa.run()
    rows = qa.compare_per_layer().rows
    last = [(row["analy_op_type"].rpartition(".")[2], row["dtype"]) for row in rows[-3:-1]]
    assert last == [("Sigmoid", "torch.float32"), ("Amax", "torch.float32")]

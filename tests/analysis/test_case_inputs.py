"""What may be given as data: any containers, sizes, names of tasks, and another form per side."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from qtune.analysis.quant_analysis import QuantAnalysis
from qtune.capture.inputs import Inputs
from qtune.errors import AnalysisError
from qtune.hbir.module import HbirModule
from qtune.quantization import convert, hbdk4

from .nets import Block, Detection, Detector, calibrated

IMAGES = [torch.rand(1, 3, 4, 4, generator=torch.Generator().manual_seed(i)) for i in range(4)]


class MultiTask(nn.Module):
    """The heads that the strings in ``task`` name."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 1)
        self.heads = nn.ModuleDict({"seg": nn.Conv2d(4, 2, 1), "det": nn.Conv2d(4, 3, 1)})

    def forward(self, data: dict[str, Any]) -> dict[str, Tensor]:
        y = torch.relu(self.stem(data["image"])) + self.stem(data["last"])
        return {task: self.heads[task](y) for task in data["task"]}


def batch(index: int, *, with_task: bool = True) -> dict[str, Any]:
    made: dict[str, Any] = {"last": IMAGES[index - 1], "image": IMAGES[index]}
    return {**made, "task": ["seg", "det"]} if with_task else made


class Stages:
    def __init__(self) -> None:
        self.model = MultiTask().eval()
        self.calib = calibrated(self.model, batch(0), batch(1))
        self.qat = hbdk4.export(self.calib, (batch(0),))
        self.integer = hbdk4.convert(self.qat, "nash-e")


@pytest.fixture
def stages() -> Stages:
    return Stages()


def session(folder: Path, pair: tuple[Any, Any], kind: str) -> QuantAnalysis:
    return QuantAnalysis(*pair, kind, out_dir=str(folder / kind))


def test_strings_that_choose_a_branch_go_to_both_torch_models(
    stages: Stages, tmp_path: Path
) -> None:
    qa = session(tmp_path, (stages.model, stages.calib), "fake_quant")
    report = qa.auto_find_bad_case(batch(i) for i in range(4))
    assert report.output_names == ["seg", "det"]
    qa.run()
    assert {"heads.seg", "heads.det"} <= set(qa.compare_per_layer().names)
    assert set(qa.sensitivity(use_sensitivity_v2=True)) == {"seg", "det"}


@pytest.mark.parametrize("with_task", [True, False])
@pytest.mark.parametrize("kind", ["fake_quant", "convert"])
def test_two_bc_modules_are_called_with_the_task_or_without(
    stages: Stages, tmp_path: Path, kind: str, with_task: bool
) -> None:
    qa = session(tmp_path, (stages.qat, stages.integer), kind)
    report = qa.auto_find_bad_case([batch(i, with_task=with_task) for i in range(3)], topk=2)
    assert report.output_names == ["seg", "det"]
    qa.run(out_name="det")
    qa.compare_per_layer()
    again = session(tmp_path, (stages.qat, stages.integer), kind)
    again.load_bad_case()
    again.run(index=report.indices[0])


@pytest.mark.parametrize("kind", ["export", "convert"])
def test_torch_against_bc_takes_the_torch_models_call(
    stages: Stages, tmp_path: Path, kind: str
) -> None:
    bc = stages.qat if kind == "export" else stages.integer
    qa = session(tmp_path, (stages.calib, bc), kind)
    qa.auto_find_bad_case([batch(i) for i in range(3)])
    qa.run()
    assert len(qa.compare_per_layer())
    qa.set_bad_case(batch(1))
    qa.run()
    qa.sensitivity()


def test_another_task_than_the_exported_one_is_named(stages: Stages, tmp_path: Path) -> None:
    qa = session(tmp_path, (stages.qat, stages.integer), "convert")
    with pytest.raises(Exception, match="exported with 'seg', got 'det'"):
        qa.auto_find_bad_case([{**batch(0), "task": ["det", "seg"]}])


class Shifted(nn.Module):
    """Another signature than the calib model's: the image in two parts."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, low: Tensor, high: Tensor) -> Tensor:
        return self.model(torch.cat([low, high], 2))


def test_sides_with_other_inputs_run_one_after_the_other(tmp_path: Path) -> None:
    model = Block().eval()
    x = torch.rand(1, 3, 8, 8)
    calib = calibrated(model, x)
    other = calibrated(Shifted(model).eval(), (x[:, :, :4], x[:, :, 4:]))
    qa = session(tmp_path, (calib, other), "fake_quant")
    qa.set_bad_case(Inputs(x))
    qa.run(run_analysis_model=False)
    with pytest.raises(AnalysisError, match="analysis has not; call"):
        qa.compare_per_layer()
    qa.set_bad_case((x[:, :, :4], x[:, :, 4:]))
    qa.run(run_baseline_model=False)
    both = qa.compare_per_layer()
    assert len(both)
    qa.set_bad_case(Inputs(x))  # a complete pair belongs to the case before
    with pytest.raises(AnalysisError, match="baseline and analysis have not; call"):
        qa.compare_per_layer()


def test_torch_with_the_task_then_bc_without_it(stages: Stages, tmp_path: Path) -> None:
    """The document's way where the two sides can't take the same call."""
    qa = session(tmp_path, (stages.calib, stages.qat), "export")
    qa.set_bad_case(batch(2))
    qa.run(run_baseline_model=True, run_analysis_model=False)
    qa.set_bad_case(dict(zip(feed_names(stages.qat), [IMAGES[1], IMAGES[2]], strict=True)))
    qa.run(run_baseline_model=False, run_analysis_model=True)
    found = qa.compare_per_layer().to_pandas()
    assert (found["ATOL"] == 0).all()  # both sides saw the same images: export changes no number
    assert found["same_in_qatbc_qdiff"].notna().any()


def feed_names(module: HbirModule) -> list[str]:
    """Of ``last`` and ``image``."""
    assert len(module[0].inputs) == 2
    return [item.name for item in module[0].inputs]


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


class Joined(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 2, 1)

    def forward(self, pair: Pair) -> Tensor:
        return self.conv(pair.left) + self.conv(pair.right)


@pytest.mark.parametrize("dump", [False, True])
def test_namedtuples_stay_namedtuples_in_files(tmp_path: Path, dump: bool) -> None:
    model = Joined().eval()
    data = [Inputs(Pair(IMAGES[0], IMAGES[1])), Inputs(Pair(IMAGES[2], IMAGES[3]))]
    calib = calibrated(model, *data)
    qa = session(tmp_path, (model, calib), "fake_quant")
    report = qa.auto_find_bad_case(data, dump_in_run=dump, topk=2)
    again = session(tmp_path, (model, calib), "fake_quant")
    again.load_bad_case()
    for made in (qa, again):
        made.run(index=report.indices[0])
        made.sensitivity()


def test_one_shot_iterators_are_asked_for_what_is_needed_only(tmp_path: Path) -> None:
    asked: list[int] = []

    def images() -> Iterator[Tensor]:
        for index, image in enumerate(IMAGES):
            asked.append(index)
            yield image

    model = nn.Sequential(nn.Conv2d(3, 2, 1)).eval()
    qa = session(tmp_path, (model, calibrated(model, IMAGES[0])), "fake_quant")
    report = qa.auto_find_bad_case(images(), num_steps=2, topk=5)
    assert asked == [0, 1]
    assert report.indices == [0, 1]
    report = qa.auto_find_bad_case(iter(IMAGES), num_steps=None, topk=5)
    assert report.indices == [0, 1, 2, 3]


def test_inputs_of_different_sizes(tmp_path: Path) -> None:
    model = Block().eval()
    data = [torch.rand(n, 3, size, size) for n, size in ((1, 8), (2, 6), (3, 11))]
    qa = session(tmp_path, (model, calibrated(model, *data)), "fake_quant")
    report = qa.auto_find_bad_case(data, topk=3, dump_in_run=True)
    for index in report.indices:
        qa.run(index=index)
        shape = list(qa.compare_per_layer().to_pandas()["shape"])[0]
        assert shape == f"torch.Size({list(data[index].shape)})"


def test_labels_behind_the_inputs_of_bc_modules_are_left_out(tmp_path: Path) -> None:
    model = Block().eval()
    x = torch.rand(1, 3, 8, 8)
    qat = hbdk4.export(calibrated(model, x), x)
    qa = session(tmp_path, (qat, hbdk4.convert(qat, "nash-e")), "convert")
    loader = torch.utils.data.DataLoader([(x[0], 1), (x[0] * 0.5, 2)])
    assert qa.auto_find_bad_case(loader).indices


def test_a_converted_model_is_compared_searched_and_ranked(tmp_path: Path) -> None:
    model = Block().eval()
    data = [torch.rand(1, 3, 8, 8) for _ in range(3)]
    calib = calibrated(model, *data)
    qa = session(tmp_path, (calib, convert(calib)), "quantized")
    report = qa.auto_find_bad_case(data, topk=2)
    qa.run()
    found = qa.compare_per_layer().to_pandas()
    assert {"stem.2", "head"} <= set(found.index)
    assert set(found["dtype"]) >= {"qint8"}
    steps = found["max_qscale_diff"].dropna()
    assert len(steps)
    assert steps.max() < 4  # a handful of operators, each within a step or two of its own
    rows = qa.sensitivity("L1")[""]
    assert {row[0] for row in rows} >= {"stem.0", "conv", "head"}
    with pytest.raises(AnalysisError, match="v2 works on analysis type 'fake_quant' only"):
        qa.sensitivity(use_sensitivity_v2=True)
    with pytest.raises(AnalysisError, match="tune_bad_case works on"):
        qa.tune_bad_case({"": {}})
    assert report.indices


def test_integer_outputs_have_their_share_of_equal_elements(tmp_path: Path) -> None:
    """A16."""

    class Classes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 1)

        def forward(self, x: Tensor, ids: Tensor) -> dict[str, Tensor]:
            y = self.conv(x)
            return {"scores": y, "ids": ids + 1, "best": y.argmax(1)}

    model = Classes().eval()
    data = [(x, torch.tensor([i])) for i, x in enumerate(IMAGES)]
    calib = calibrated(model, *data)
    qa = session(tmp_path, (model, calib), "fake_quant")
    report = qa.auto_find_bad_case(data)
    assert report.output_names == qa.output_names() == ["scores"]
    assert report.exact_match["ids"] == [1.0] * 4
    with torch.no_grad():
        expected = [float((model(*d)["best"] == calib(*d)["best"]).double().mean()) for d in data]
    assert report.exact_match["best"] == expected
    (ids, best) = report.exact_statistics()
    assert ids["worst exact match"] == 1.0
    assert best["worst exact match"] == min(expected)
    assert expected[best["worst index"]] == min(expected)
    assert "exact match" in (qa.out_dir / "badcase_report.html").read_text()


def test_structured_outputs_keep_their_names(tmp_path: Path) -> None:
    """A18."""
    data = [(torch.rand(1, 3, 4, 4), torch.tensor([i])) for i in range(2)]
    model = Detector().eval()
    calib = calibrated(model, data[0])
    assert isinstance(calib(*data[0]), Detection)
    qa = session(tmp_path, (model, calib), "fake_quant")
    with pytest.raises(AnalysisError, match="output_names: no report yet"):
        qa.output_names()
    qa.auto_find_bad_case(data)
    report = qa.badcase_report
    assert report is not None
    assert qa.output_names() == list(report.output_to_badcase_info) == ["boxes", "aux-k-0"]


def test_without_a_gpu_the_report_says_where_it_ran(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    model = nn.Sequential(nn.Conv2d(3, 2, 1)).eval()
    calib = calibrated(model, IMAGES[0])
    with caplog.at_level("INFO", "qtune.analysis"):
        qa = QuantAnalysis(model, calib, "fake_quant", device_ids=0, out_dir=str(tmp_path))
    assert [r.levelname for r in caplog.records] == ["INFO"]
    assert qa.auto_find_bad_case(IMAGES).device == "cpu (device_ids=0: no GPU here)"
    assert "device_ids=0: no GPU here" in (tmp_path / "badcase_report.html").read_text()


def test_a_loader_may_fill_one_tensor_again_and_again(tmp_path: Path) -> None:
    def frames() -> Iterator[Tensor]:
        frame = torch.empty(1, 3, 4, 4)
        for image in IMAGES:
            yield frame.copy_(image)

    model = nn.Sequential(nn.Conv2d(3, 2, 1)).eval()
    calib = calibrated(model, IMAGES[0])
    qa = session(tmp_path, (model, calib), "fake_quant")
    report = qa.auto_find_bad_case(frames(), topk=2)
    for index in report.indices:
        qa.run(index=index)
        last = qa.compare_per_layer().to_pandas()["ATOL"].iloc[-1]
        assert last == report.values[""]["ATOL"][index]


def test_a_model_may_write_to_its_inputs(tmp_path: Path) -> None:
    class Centred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(x.sub_(0.5))

    model = Centred().eval()
    data = [image.clone() for image in IMAGES]
    calib = calibrated(model, data[0].clone())
    qa = session(tmp_path, (model, calib), "fake_quant")
    report = qa.auto_find_bad_case(data)
    qa.run()
    assert all(torch.equal(a, b) for a, b in zip(data, IMAGES, strict=True))
    worst = max(value for value in report.values[""]["ATOL"] if value is not None)
    assert qa.compare_per_layer().to_pandas()["ATOL"].iloc[-1] == worst

"""``QuantAnalysis`` as a user sees it: files, parameters, errors, and what it leaves behind."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import qtune
from qtune.analysis.quant_analysis import QuantAnalysis
from qtune.errors import AnalysisError
from qtune.profiler import BadCaseReport, OpInfo, SensitivityTable
from qtune.profiler.metric import Metric
from qtune.quantization import FakeQuantState, hbdk4, prepare, set_fake_quantize

from .nets import Block, Detector, assert_same, calibrated, fingerprint


class Setting:
    """A float model, its calibrated twin, and six inputs."""

    def __init__(self, folder: Path) -> None:
        self.model = Block().eval()
        self.data = [torch.rand(1, 3, 8, 8) * (1 + i / 10) for i in range(6)]
        self.calib = calibrated(self.model, *self.data[:2])
        self.folder = folder

    def analysis(self, name: str = "out", **options: Any) -> QuantAnalysis:
        out = str(self.folder / name)
        return QuantAnalysis(self.model, self.calib, "fake_quant", out_dir=out, **options)


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path)


def names(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir() if p.is_file()}


def test_a_whole_session_leaves_the_documented_files(setting: Setting) -> None:
    qa = setting.analysis(device_ids=0)
    report = qa.auto_find_bad_case(setting.data, topk=2)
    assert qa.badcase_report is report
    qa.run()
    qa.compare_per_layer()
    tables = qa.sensitivity(use_sensitivity_v2=True)
    qa.tune_bad_case({"": {"metric": Metric.ATOL, "threshold": 0.0, "max_tuned_stubs": 1}})
    cases = [str(i) for i in report.cases_of("", Metric.ATOL)]
    assert len(cases) == 2
    kinds = (".txt", ".csv", ".pt")
    stems = [f"output__case_{case}_sensitive_ops" for case in (*cases, "mean", "worst")]
    stems += [f"output__tuned_case_{case}_sensitive_ops" for case in cases]
    assert names(qa.out_dir) == {
        "badcase_report.html",
        "all_badcase_info.pt",
        "compare_per_layer_out_0.txt",
        "compare_per_layer_op_error_0.csv",
        "compare_per_layer_op_error_0.txt",
        "compare_per_layer_out_0.csv",
        "compare_per_layer_report_0.html",
        "sensitivity_v2_report.html",
        *(stem + kind for stem in stems for kind in kinds),
    }
    assert names(qa.out_dir / "badcase") == {f"{i}.pt" for i in report.indices}
    assert [table.case for table in tables[""]] == cases


def test_tables_read_back_from_csv_and_from_torchs_safe_load(setting: Setting) -> None:
    qa = setting.analysis()
    qa.set_bad_case(setting.data[0])
    (table,) = qa.sensitivity(use_sensitivity_v2=True)[""]
    stem = qa.out_dir / "output__case_0_sensitive_ops"
    assert torch.load(f"{stem}.pt") == table
    frame = pd.read_csv(f"{stem}.csv")
    assert list(frame.columns) == table.columns
    assert frame["qint8_ATOL"].tolist() == table.column("qint8_ATOL")  # 17 digits are written
    text = Path(f"{stem}.txt").read_text().splitlines()
    assert text[0].split() == table.columns
    assert len(text) == len(table) + 2
    (tuned,) = qa.tune_bad_case(
        {"": {"metric": "ATOL", "threshold": 0.0, "max_tuned_stubs": 2}}, {"stem": ["weight"]}
    )[""]
    assert tuned.columns == [*table.columns, "tuned_cumulative_ATOL"]
    assert torch.load(qa.out_dir / "output__tuned_case_0_sensitive_ops.pt") == tuned


def test_the_comparison_is_the_same_in_csv_txt_and_html(setting: Setting) -> None:
    qa = setting.analysis(metric_list=[Metric.MSE, "ATOL"])
    qa.set_bad_case(setting.data[0])
    qa.run()
    found = qa.compare_per_layer()
    for stem, table in (("out", found), ("op_error", found.op_errors())):
        file = qa.out_dir / f"compare_per_layer_{stem}_0.csv"
        frame = pd.read_csv(file, index_col=0, dtype=str, keep_default_na=False)
        lines = file.with_suffix(".txt").read_text().splitlines()
        assert len(lines) == len(table) + 4
        cells = [[c.strip() for c in line.split("|")[1:-1]] for line in lines if line[0] == "|"]
        assert cells[0] == ["", *table.columns]
        assert cells[2:] == [[str(i), *row] for i, row in enumerate(frame.to_numpy().tolist())]
    html = (qa.out_dir / "compare_per_layer_report_0.html").read_text()
    assert all(name in html for name in found.names)
    only = qa.compare_per_layer(prefixes=("stem",), types=(nn.Conv2d,))
    assert only.names == ("stem.0",)


def test_op_infos_load_safely_in_a_new_process(setting: Setting) -> None:
    qa = setting.analysis()
    qa.auto_find_bad_case(setting.data[:1])
    qa.run()
    files = sorted((qa.out_dir / "op_infos" / "analysis").glob("*.opinfo"))
    info = torch.load(files[1])
    assert isinstance(info, OpInfo)
    conv = setting.calib.get_submodule(info.name)
    assert torch.equal(conv(*info.input, None, None), info.output[0])
    code = f"import torch, qtune.profiler; print(torch.load({str(files[1])!r}).name)"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True
    )
    assert done.stdout.strip() == "stem.0"
    qa.clean()
    assert not (qa.out_dir / "op_infos").exists()
    assert (qa.out_dir / "badcase").exists()
    with pytest.raises(AnalysisError, match="both models must have run"):
        qa.compare_per_layer()


def test_a_report_is_loaded_from_its_folder_and_from_another(setting: Setting) -> None:
    first = setting.analysis("first")
    report = first.auto_find_bad_case(setting.data, topk=2)
    first.sensitivity(use_sensitivity_v2=True)
    again = setting.analysis("first")
    again.load_bad_case()
    assert again.badcase_report == report
    assert isinstance(torch.load(again.out_dir / "all_badcase_info.pt"), BadCaseReport)
    goal = {"": {"metric": "ATOL", "threshold": 0.0, "max_tuned_stubs": 1}}
    assert len(again.tune_bad_case(goal)[""]) == 2  # with the tables of the first session
    other = setting.analysis("other")
    other.load_bad_case(str(first.out_dir))
    assert names(other.out_dir) == {"all_badcase_info.pt", "badcase_report.html"}
    assert names(other.out_dir / "badcase") == names(first.out_dir / "badcase")
    other.run(index=report.indices[0])
    with pytest.raises(FileNotFoundError, match=r"output__case_\d+_sensitive_ops\.pt"):
        other.tune_bad_case(goal)
    with pytest.raises(AnalysisError, match="does not exist; run auto_find_bad_case first"):
        setting.analysis("none").load_bad_case()


def test_a_report_file_with_code_in_it_is_not_unpickled(setting: Setting) -> None:
    qa = setting.analysis()
    qa.out_dir.mkdir()

    class Evil:
        def __reduce__(self) -> Any:
            return (os.mkdir, (str(qa.out_dir / "pwned"),))

    torch.save(Evil(), qa.out_dir / "all_badcase_info.pt")
    with pytest.raises(AnalysisError, match=r"all_badcase_info\.pt can't be read safely"):
        qa.load_bad_case()
    assert not (qa.out_dir / "pwned").exists()


def test_tables_of_an_earlier_bad_case_are_not_used(setting: Setting) -> None:
    qa = setting.analysis()
    goal = {"": {"metric": "ATOL", "threshold": 0.0, "max_tuned_stubs": 1}}
    qa.set_bad_case(setting.data[0])
    with pytest.raises(FileNotFoundError, match="call sensitivity"):
        qa.tune_bad_case(goal)
    qa.sensitivity()  # the old form does not help
    with pytest.raises(FileNotFoundError, match=r"sensitive_ops\.pt does not exist"):
        qa.tune_bad_case(goal)
    qa.sensitivity(use_sensitivity_v2=True)
    qa.set_bad_case(setting.data[1])
    with pytest.raises(FileNotFoundError, match="belong to earlier bad cases"):
        qa.tune_bad_case(goal)


def test_the_old_sensitivity_is_the_default(setting: Setting) -> None:
    qa = setting.analysis()
    report = qa.auto_find_bad_case(setting.data, topk=2)
    rows = qa.sensitivity(metric="L1", prefixes=("conv", "head"))[""]
    assert [type(cell) for cell in rows[0]] == [str, str, str, float, str, str]
    assert [row[:2] for row in rows] in (
        [["conv", "weight"], ["head", "weight"]],
        [["head", "weight"], ["conv", "weight"]],
    )
    assert rows[0][3] >= rows[1][3]
    written = {n for n in names(qa.out_dir) if "sensitive" in n}
    cases = report.cases_of("", Metric.L1)
    assert written == {f"output__case_{c}_L1_sensitive_ops.txt" for c in cases}
    text = (qa.out_dir / f"output__case_{cases[0]}_L1_sensitive_ops.txt").read_text()
    head = ["op_name", "sensitive_type", "op_type", "L1", "quant_dtype", "flops"]
    assert text.splitlines()[0].split() == head


def test_nested_outputs_have_reports_and_tables_each(tmp_path: Path) -> None:
    """A16, A18."""
    data = [(torch.rand(1, 3, 4, 4), torch.tensor([i])) for i in range(3)]
    model = Detector().eval()
    qa = QuantAnalysis(model, calibrated(model, data[0]), "fake_quant", out_dir=str(tmp_path))
    report = qa.auto_find_bad_case([data[0], data[1], data[2]])
    assert report.output_names == ["boxes", "aux-k-0"]
    qa.sensitivity(use_sensitivity_v2=True, output_names=("aux-k-0",))
    assert [n for n in names(tmp_path) if n.endswith(".csv")] == [
        f"output_aux-k-0_case_{report.cases_of('aux-k-0', Metric.ATOL)[0]}_sensitive_ops.csv"
    ]


def test_post_process_is_applied_to_both_models(setting: Setting) -> None:
    def double(output: Tensor) -> dict[str, Tensor]:
        return {"logits": output * 2}

    qa = setting.analysis(post_process=double)
    report = qa.auto_find_bad_case(setting.data[:2])
    plain = setting.analysis("plain").auto_find_bad_case(setting.data[:2])
    assert report.output_names == ["logits"]
    # doubling is exact in floating point
    assert report.values["logits"]["ATOL"] == [2 * v for v in plain.values[""]["ATOL"] if v]
    assert list(qa.sensitivity(use_sensitivity_v2=True)) == ["logits"]


@pytest.mark.parametrize("kind", ["pre_export", "export", "convert", "fake_quant"])
def test_all_analysis_types_compare_operators(setting: Setting, kind: str) -> None:
    x = setting.data[0]
    pre = hbdk4.pre_export(setting.calib)
    qat = hbdk4.export(pre, x)
    integer = hbdk4.convert(qat, "nash-e")
    pairs = {
        "pre_export": (setting.calib, pre),
        "export": (pre, qat),
        "convert": (pre, integer),
        "fake_quant": (qat, integer),
    }
    qa = QuantAnalysis(*pairs[kind], kind, out_dir=str(setting.folder / kind))
    qa.set_bad_case(x)
    qa.run()
    found = qa.compare_per_layer().to_pandas()
    if kind in ("pre_export", "export"):
        assert (found["ATOL"] == 0).all()
    filled = {"export": "same_in_qatbc_qdiff", "convert": "same_in_intbc_qdiff"}.get(kind)
    for column in ("same_in_qatbc_qdiff", "same_in_intbc_qdiff"):
        assert found[column].notna().any() == (column == filled), column
    if kind == "convert":
        assert found["same_in_intbc_qdiff"].max() <= 1  # the published bar of the chip
    if kind == "fake_quant":
        with pytest.raises(AnalysisError, match="sensitivity needs a torch model"):
            qa.sensitivity()
    else:
        with pytest.raises(AnalysisError, match="v2 works on analysis type 'fake_quant' only"):
            qa.sensitivity(use_sensitivity_v2=True)
        with pytest.raises(AnalysisError, match="tune_bad_case works on"):
            qa.tune_bad_case({})
        assert qa.sensitivity()[""]


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("auto_find_bad_case", {"metric": "L1"}),
        ("auto_find_bad_case", {"device": "cpu"}),
        ("auto_find_bad_case", {"custom_metric_func": max}),
        ("auto_find_bad_case", {"custom_metric_order_seq": "ascending"}),
        ("run", {"device": "cpu"}),
        ("sensitivity", {"device": "cpu"}),
        ("sensitivity", {"reserve": True}),
    ],
)
def test_old_parameters_are_accepted_with_a_warning(
    setting: Setting, method: str, arguments: dict[str, Any]
) -> None:
    qa = setting.analysis()
    qa.set_bad_case(setting.data[0])
    first = (setting.data[:1],) if method == "auto_find_bad_case" else ()
    (name,) = arguments
    with pytest.warns(DeprecationWarning, match=f"{method}: {name} is deprecated"):
        getattr(qa, method)(*first, **arguments)
    if method != "run":
        with pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'"):
            getattr(qa, method)(*first, nonsense=1)


def test_run_says_what_does_not_fit(setting: Setting) -> None:
    qa = setting.analysis()
    with pytest.raises(AnalysisError, match="no bad case"):
        qa.run()
    report = qa.auto_find_bad_case(setting.data)
    with pytest.raises(AnalysisError, match="index or metric, not both"):
        qa.run(index=0, metric=Metric.L1)
    with pytest.raises(AnalysisError, match="is not in the bad case report"):
        qa.run(index=next(i for i in range(9) if i not in report.indices))
    qa.run(run_baseline_model=False)
    with pytest.raises(AnalysisError, match="both models must have run"):
        qa.compare_per_layer()
    qa.run(run_analysis_model=False)
    qa.compare_per_layer()


def test_a_calibrating_model_is_refused_before_it_learns_from_the_data(setting: Setting) -> None:
    qa = setting.analysis()
    set_fake_quantize(setting.calib, FakeQuantState.CALIBRATION)
    before = fingerprint(setting.calib)
    qa.set_bad_case(100 * setting.data[0])
    for call in (qa.run, lambda: qa.auto_find_bad_case([100 * setting.data[0]])):
        with pytest.raises(AnalysisError, match=r"in the state CALIBRATION .*State\.VALIDATION"):
            call()
    assert_same(before, setting.calib)


def test_models_in_training_mode_run_in_eval_and_say_so(
    setting: Setting, caplog: pytest.LogCaptureFixture
) -> None:
    setting.model.train()
    before = fingerprint(setting.model)  # with the statistics of the batch norm
    with caplog.at_level(logging.WARNING, "qtune.analysis"):
        setting.analysis().auto_find_bad_case(setting.data)
    assert "Block is in training mode" in caplog.text
    assert_same(before, setting.model)


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_models_and_random_state_are_left_as_they_were(
    setting: Setting, error: type[BaseException] | None
) -> None:
    setting.model.head.weight.grad = torch.ones_like(setting.model.head.weight)
    calls = []

    @Metric.register("test_metric", False, "all")
    def metric(a: Tensor, b: Tensor) -> Tensor:
        calls.append(1)
        torch.rand(1)
        if error is not None and len(calls) > 3:
            raise error("stop")
        return (a - b).abs().max()

    before = fingerprint(setting.model), fingerprint(setting.calib)
    qa = setting.analysis(metric_list=["test_metric"])
    try:
        if error is None:
            qa.auto_find_bad_case(setting.data)
            qa.run(metric="test_metric")
            qa.compare_per_layer()
            qa.sensitivity("test_metric", use_sensitivity_v2=True)
        else:
            with pytest.raises(error):
                qa.auto_find_bad_case(setting.data)
    finally:
        Metric.unregister("test_metric")
    assert_same(before[0], setting.model)
    assert_same(before[1], setting.calib)


def test_a_model_that_was_never_calibrated_is_named(tmp_path: Path) -> None:
    model = Block().eval()
    qa = QuantAnalysis(
        model, prepare(model, torch.rand(1, 3, 8, 8)).eval(), "fake_quant", out_dir=str(tmp_path)
    )
    with pytest.raises(RuntimeError, match="nothing is calibrated for: _input_0_quant"):
        qa.auto_find_bad_case([torch.rand(1, 3, 8, 8)])


def test_quant_analysis_is_served_by_the_profiler_package() -> None:
    import qtune.profiler
    from qtune.profiler.utils.entities import Metric as Served

    assert qtune.profiler.QuantAnalysis is QuantAnalysis
    assert Served is Metric
    assert SensitivityTable.__module__ == "qtune.profiler.sensitivity_table"


def test_labelled_batches_are_taken_as_their_inputs(setting: Setting) -> None:
    qa = setting.analysis()
    report = qa.auto_find_bad_case([(x, torch.zeros(1)) for x in setting.data[:2]])
    assert report.indices
    with pytest.raises(AnalysisError, match="auto_find_bad_case: batch 0: .*too many positional"):
        qa.auto_find_bad_case([qtune.Inputs(setting.data[0], setting.data[0])])
    qa.set_bad_case([setting.data[0], torch.zeros(1)])

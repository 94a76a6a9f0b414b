"""``set_model_profiler_dir``: comparing what two profilers saw, without ``run``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from qtune.analysis.quant_analysis import QuantAnalysis
from qtune.errors import AnalysisError
from qtune.profiler import HbirModelProfiler, ModelProfiler
from qtune.quantization import hbdk4

from .nets import Block, calibrated

X = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Setting:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = Block().eval()
        self.calib = calibrated(self.model, X)
        self.qat = hbdk4.export(self.calib, X)

    def profiled(self, name: str, model: Any) -> str:
        path = str(self.folder / name)
        if model is self.qat:
            with HbirModelProfiler(model, path):
                model[0](X)
        else:
            with ModelProfiler(model, path), torch.no_grad():
                model(X)
        return path

    def analysis(self, baseline: Any, analysed: Any, kind: str) -> QuantAnalysis:
        return QuantAnalysis(baseline, analysed, kind, out_dir=str(self.folder / f"out_{kind}"))


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path)


@pytest.mark.parametrize("kind", ["fake_quant", "export"])
def test_the_comparison_is_that_of_a_run(setting: Setting, kind: str) -> None:
    other = setting.calib if kind == "fake_quant" else setting.qat
    pair = (setting.model if kind == "fake_quant" else setting.calib), other
    folders = [setting.profiled(n, m) for n, m in zip(("left", "right"), pair, strict=True)]
    qa = setting.analysis(*pair, kind)
    qa.set_bad_case(X)
    qa.run()
    expected = qa.compare_per_layer().to_pandas()
    qa.set_model_profiler_dir(folders[0], folders[1])
    found = qa.compare_per_layer().to_pandas()
    common = found.index.intersection(expected.index)
    assert {"stem.0", "conv", "head"} <= set(common)
    for column in ("shape", "dtype", "qscale", "ATOL", "L1", "COSINE", "analy_model_max"):
        left, right = found.loc[common, column], expected.loc[common, column]
        exact = ["stem.2", "conv", "head"]  # the profiler sees a folded norm as the model has it
        assert left[exact].equals(right[exact]), column
    assert (qa.out_dir / "compare_per_layer_report_0.html").exists()


def test_no_run_is_needed_and_a_new_case_ends_it(setting: Setting) -> None:
    folders = [setting.profiled("left", setting.model), setting.profiled("right", setting.calib)]
    qa = setting.analysis(setting.model, setting.calib, "fake_quant")
    qa.set_model_profiler_dir(folders[0], folders[1])
    assert len(qa.compare_per_layer(prefixes=("head",))) == 1
    qa.set_bad_case(X)
    with pytest.raises(AnalysisError, match="both models must have run"):
        qa.compare_per_layer()


def test_a_folder_without_a_profile_is_named_and_changes_nothing(setting: Setting) -> None:
    left = setting.profiled("left", setting.model)
    qa = setting.analysis(setting.model, setting.calib, "fake_quant")
    qa.set_bad_case(X)
    qa.run()
    with pytest.raises(AnalysisError, match="nowhere holds no"):
        qa.set_model_profiler_dir(left, str(setting.folder / "nowhere"))
    assert len(qa.compare_per_layer())

"""Results of another case, another model or another analysis never pass for those of this one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from qtune.analysis.quant_analysis import QuantAnalysis
from qtune.errors import AnalysisError

from .nets import Block, calibrated

GOAL = {"": {"metric": "ATOL", "threshold": 0.0, "max_tuned_stubs": 2}}


def data() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [scale * torch.rand(1, 3, 8, 8, generator=generator) for scale in (1, 2, 4)]


def analysis_of(net: nn.Module, folder: Path) -> QuantAnalysis:
    return QuantAnalysis(net, calibrated(net, *data()), "fake_quant", out_dir=str(folder))


@pytest.fixture
def qa(tmp_path: Path) -> QuantAnalysis:
    """All three cases are in its report; it has run the first one."""
    made = analysis_of(Block().eval(), tmp_path)
    made.auto_find_bad_case(data(), topk=3)
    made.run(index=0)
    return made


@pytest.mark.parametrize("at", ["stem.0", "head"])
def test_a_run_that_ends_half_way_leaves_no_earlier_one_to_compare(
    qa: QuantAnalysis, at: str
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    handle = qa.analysis_model.get_submodule(at).register_forward_hook(stop)  # type: ignore[union-attr]
    with pytest.raises(KeyboardInterrupt):
        qa.run(index=2)
    handle.remove()
    with pytest.raises(AnalysisError, match="analysis ha.* not; call"):
        qa.compare_per_layer()
    qa.run(index=2)
    assert qa.compare_per_layer()


def test_two_cases_of_a_report_are_not_compared(qa: QuantAnalysis) -> None:
    qa.run(index=2, run_analysis_model=False)
    with pytest.raises(AnalysisError, match="baseline ran on case 2, the analysed model on case 0"):
        qa.compare_per_layer()
    qa.run(index=2, run_baseline_model=False)
    assert qa.compare_per_layer()


def test_the_run_of_another_analysis_in_the_folder_is_not_read(qa: QuantAnalysis) -> None:
    other = analysis_of(Block().eval(), qa.out_dir)
    other.set_bad_case(data()[1])
    other.run()
    with pytest.raises(AnalysisError, match=r"not the file that this analysis wrote.*call run\(\)"):
        qa.compare_per_layer()
    assert other.compare_per_layer()
    other.clean()
    with pytest.raises(AnalysisError, match="not the file that this analysis wrote"):
        qa.compare_per_layer()


def test_tuning_takes_the_tables_of_its_own_analysis(qa: QuantAnalysis) -> None:
    """Also where another one wrote a table of that name into the same folder."""
    qa.set_bad_case(data()[0])
    qa.sensitivity(use_sensitivity_v2=True)
    before = qa.tune_bad_case(GOAL)
    other = analysis_of(nn.Sequential(nn.Conv2d(3, 2, 1), nn.Conv2d(2, 2, 1)).eval(), qa.out_dir)
    other.set_bad_case(data()[1])
    other.sensitivity(use_sensitivity_v2=True)
    assert repr(qa.tune_bad_case(GOAL)) == repr(before)


def test_tables_of_another_model_are_refused(qa: QuantAnalysis) -> None:
    qa.sensitivity(use_sensitivity_v2=True)
    other = analysis_of(nn.Sequential(nn.Conv2d(3, 2, 1), nn.Conv2d(2, 2, 1)).eval(), qa.out_dir)
    other.load_bad_case()
    with pytest.raises(AnalysisError, match=r"table is one of another model, it names .*add_0"):
        other.tune_bad_case(GOAL)

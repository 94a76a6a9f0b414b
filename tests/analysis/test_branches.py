"""A model whose branches, picked by a task, give other outputs: rankings per output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qtune.analysis.quant_analysis import QuantAnalysis
from qtune.capture.inputs import Inputs
from qtune.errors import AnalysisError
from qtune.quantization import FakeQuantState, prepare, set_fake_quantize


class Tasks(nn.Module):
    """A trunk and two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 3), nn.Linear(4, 2)

    def forward(self, x: Tensor, task: str = "left") -> dict[str, Tensor]:
        x = torch.relu(self.trunk(x))
        return {"left": self.left(x)} if task == "left" else {"right": self.right(x)}


SIZES = {0: ("left", 1), 1: ("right", 1), 2: ("left", 4), 3: ("right", 4)}
"""Case -> its task and how large its data are: the last two are the worst."""


@pytest.fixture
def qa(tmp_path: Path) -> QuantAnalysis:
    net = Tasks().eval()
    data = [Inputs(size * torch.randn(2, 4), task=task) for task, size in SIZES.values()]
    model = prepare(net, example_inputs=data[:2])
    set_fake_quantize(model.eval(), FakeQuantState.CALIBRATION)
    for inputs in data[:2]:
        model(*inputs.args, **inputs.kwargs)
    set_fake_quantize(model, FakeQuantState.VALIDATION)
    made = QuantAnalysis(net, model, "fake_quant", out_dir=str(tmp_path), metric_list=["ATOL"])
    made.auto_find_bad_case(data, topk=2)
    return made


def cases_of(found: dict[str, list[Any]]) -> dict[str, set[str]]:
    return {output: {table.case for table in tables} for output, tables in found.items()}


@pytest.mark.parametrize("metric", ["ATOL", "KL"])
def test_each_output_is_ranked_on_its_own_cases(qa: QuantAnalysis, metric: str) -> None:
    """Also under a metric that the search did not know."""
    tables = qa.sensitivity(metric, use_sensitivity_v2=True)
    assert cases_of(tables) == {"left": {"0", "2"}, "right": {"1", "3"}}
    lists = qa.sensitivity(metric)
    assert {output: rows[0][0] for output, rows in lists.items()}.keys() == {"left", "right"}
    assert {row[0] for row in lists["right"]} >= {"trunk", "right"}
    assert not any(row[0] == "left" for row in lists["right"])


@pytest.mark.parametrize("metric", ["ATOL", "KL"])
@pytest.mark.parametrize("output", ["left", "right"])
def test_an_output_can_be_wanted_that_other_branches_lack(
    qa: QuantAnalysis, metric: str, output: str
) -> None:
    whole = qa.sensitivity(metric, use_sensitivity_v2=True)[output]
    only = qa.sensitivity(metric, use_sensitivity_v2=True, output_names=(output,))
    assert list(only) == [output]
    assert repr(only[output]) == repr(whole)
    assert list(qa.sensitivity(metric, output_names=output)) == [output]  # type: ignore[arg-type]


def test_an_operator_that_only_the_other_branch_has_is_ranked_there(qa: QuantAnalysis) -> None:
    assert list(qa.sensitivity("KL", prefixes=("right",))) == ["right"]


@pytest.mark.parametrize("names", [(), ("middle",), ("left", "middle")])
def test_unknown_outputs_are_refused(qa: QuantAnalysis, names: tuple[str, ...]) -> None:
    with pytest.raises(AnalysisError, match="output_names is empty|no output named"):
        qa.sensitivity(output_names=names)

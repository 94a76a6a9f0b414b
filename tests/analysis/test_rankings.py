"""Of every output the cases are ranked that were kept for it, and the worst one is returned."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from qtune.analysis.quant_analysis import QuantAnalysis

from .nets import calibrated


class Two(nn.Module):
    """Two nets beside each other, so that each output has a worst case of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 3), nn.Linear(4, 2)

    def forward(self, a: Tensor, b: Tensor) -> dict[str, Tensor]:
        return {"left": self.left(a), "right": self.right(b)}


DATA = [(s * torch.ones(1, 4), t * torch.ones(1, 4)) for s, t in ((8, 1), (4, 4), (2, 16))]
"""The larger beyond the calibrated range, the worse: cases 0, 1 are left's, 2, 1 are right's."""
KEPT = {"left": [0, 1], "right": [2, 1]}


@pytest.fixture
def qa(tmp_path: Path) -> QuantAnalysis:
    net = Two().eval()
    model = calibrated(net, (torch.ones(1, 4), torch.ones(1, 4)))
    made = QuantAnalysis(net, model, "fake_quant", out_dir=str(tmp_path), metric_list=["ATOL"])
    report = made.auto_find_bad_case(DATA, topk=2)
    kept = {name: report.output_to_badcase_info[name]["ATOL"] for name in KEPT}
    assert {name: [index for index, _ in cases] for name, cases in kept.items()} == KEPT
    return made


def written(qa: QuantAnalysis, pattern: str) -> set[str]:
    return {path.name for path in qa.out_dir.glob(pattern)}


def test_tables_are_those_of_the_cases_kept_for_the_output(qa: QuantAnalysis) -> None:
    tables = qa.sensitivity(use_sensitivity_v2=True)
    found = {name: {int(table.case) for table in cases} for name, cases in tables.items()}
    assert found == {name: set(cases) for name, cases in KEPT.items()}
    names = {f"output_{o}_case_{i}_sensitive_ops.pt" for o, cases in KEPT.items() for i in cases}
    assert written(qa, "output_*_case_[0-9]_sensitive_ops.pt") == names


def test_the_list_is_that_of_the_worst_case(qa: QuantAnalysis) -> None:
    lists = qa.sensitivity()
    names = {f"output_{o}_case_{i}_ATOL_sensitive_ops.txt" for o, c in KEPT.items() for i in c}
    assert written(qa, "output_*_ATOL_sensitive_ops.txt") == names
    for output, (worst, other) in KEPT.items():
        qa.set_bad_case(DATA[worst])
        assert qa.sensitivity()[output] == lists[output]
        qa.set_bad_case(DATA[other])
        assert qa.sensitivity()[output] != lists[output]

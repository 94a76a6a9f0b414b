"""``max_cache_bytes`` of ``QuantAnalysis.sensitivity``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from qtune.analysis import port_runs
from qtune.analysis.downstream import Baseline
from qtune.analysis.quant_analysis import QuantAnalysis
from qtune.errors import AnalysisError

from .nets import Block, calibrated


@pytest.fixture
def qa(tmp_path: Path) -> QuantAnalysis:
    net, x = Block().eval(), torch.rand(1, 3, 8, 8)
    found = QuantAnalysis(net, calibrated(net, x), "fake_quant", out_dir=str(tmp_path))
    found.set_bad_case(x)
    return found


@pytest.mark.parametrize("use_v2", [False, True])
def test_it_bounds_what_is_kept_and_changes_no_number(
    qa: QuantAnalysis, monkeypatch: pytest.MonkeyPatch, use_v2: bool
) -> None:
    made: list[Baseline] = []

    class Seen(Baseline):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self)

    monkeypatch.setattr(port_runs, "Baseline", Seen)
    tables = [
        qa.sensitivity(use_sensitivity_v2=use_v2, max_cache_bytes=limit) for limit in (None, 0)
    ]
    assert [baseline.is_cached for baseline in made] == [True, False]
    assert tables[0] == tables[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sensitivity_method": "grad_x_error"}, "'grad_x_error' caches nothing"),
        ({"max_cache_bytes": -1}, "from 0 on, got -1"),
        ({"max_cache_bytes": 1.5}, "a whole number of bytes, got 1.5"),
    ],
)
def test_a_limit_that_means_nothing_is_refused(
    qa: QuantAnalysis, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(AnalysisError, match=message):
        qa.sensitivity(use_sensitivity_v2=True, **{"max_cache_bytes": 1, **options})

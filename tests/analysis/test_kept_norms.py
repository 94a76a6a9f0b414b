"""Analyses of models whose QAT mode keeps batch norms: the same tables as with FuseBN."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune.march import march
from qtune.modes import qat_mode
from qtune.profiler import QuantAnalysis
from qtune.quantization import auto_calibrate, prepare
from qtune.quantization.hbdk4 import export


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.head = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1)
        with torch.no_grad():
            self.bn.weight.copy_(torch.tensor([2.0, -1.0, 0.5, 3.0]))
            self.bn.bias.copy_(torch.tensor([1.0, 0.0, -1.0, 2.0]))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.bn(self.conv(x))))  # type: ignore[no-any-return]


def analysis(mode: str, folder: Path) -> tuple[QuantAnalysis, Any, Tensor]:
    torch.manual_seed(0)
    net, x = Net().eval(), torch.randn(4, 3, 8, 8)
    with march("nash-e"), qat_mode(mode):
        p = auto_calibrate(prepare(net, x), [x])
    found = QuantAnalysis(net, p, "fake_quant", out_dir=str(folder / mode))
    found.set_bad_case(x)
    found.run()
    return found, p, x


@pytest.mark.parametrize("mode", ["with_bn", "with_bn_reverse_fold"])
def test_layers_and_weights_score_as_with_fuse_bn(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QTUNE_RUN_DIR", "")
    kept, p, x = analysis(mode, tmp_path)
    fused, _, _ = analysis("fuse_bn", tmp_path)
    columns = ["base_model_min", "base_model_max", "analy_model_min", "analy_model_max"]
    tables = [
        found.compare_per_layer().to_pandas()[columns].astype(float) for found in (kept, fused)
    ]
    assert list(tables[0].index) == list(tables[1].index)
    # codes next to a tie may differ: one step of a hundred or so
    assert (tables[0] - tables[1]).abs().to_numpy().max() < 0.05
    conv, norm = (tables[0].loc[name] for name in ("conv", "bn"))
    assert (conv - norm).abs().max() < 1e-4  # the float model's own sum against the folded one
    ranked = kept.sensitivity(use_sensitivity_v2=True)[""][0].to_pandas()
    weight = ranked[(ranked["op_name"] == "conv") & (ranked["fake_stub_type"] == "weight")]
    assert float(weight["qint8_ATOL"].iloc[0]) > float(weight["qint16_ATOL"].iloc[0]) > 0
    consistent = QuantAnalysis(p, export(p, x), "export", out_dir=str(tmp_path / "export"))
    consistent.set_bad_case(x)
    consistent.run()
    assert consistent.compare_per_layer().to_pandas()["ATOL"].astype(float).max() == 0

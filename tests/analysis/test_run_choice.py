"""Which bad case ``run`` takes."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from qtune.analysis.quant_analysis import QuantAnalysis

from .nets import calibrated


class Heads(nn.Module):
    """Two outputs, each of one half of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.high = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        left, right = x.chunk(2, 1)
        return {"low": self.low(left), "high": self.high(right)}


def test_out_name_chooses_the_worst_case_of_that_output(tmp_path: Path) -> None:
    net, fine = Heads().eval(), torch.rand(2, 8)
    clipped = [fine.clone(), fine.clone()]
    clipped[0][:, :4] *= 20  # far beyond the scale, for one output each
    clipped[1][:, 4:] *= 10
    analysis = QuantAnalysis(net, calibrated(net, fine), "fake_quant", out_dir=str(tmp_path))
    analysis.auto_find_bad_case([fine, *clipped])

    def ran(out_name: str | None) -> Tensor:
        analysis.run(out_name=out_name)
        (file,) = tmp_path.glob("op_infos/analysis/*_input_0_quant.opinfo")
        taken: Tensor = torch.load(file).input[0]
        return taken

    assert torch.equal(ran("low"), clipped[0])
    assert torch.equal(ran("high"), clipped[1])
    assert torch.equal(ran(None), clipped[0])

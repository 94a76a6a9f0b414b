"""A31: a captured activation that is overwritten later."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune.profiler import QuantAnalysis

from .steps import calibrated, run


class InPlace(nn.Module):
    def __init__(self, change: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.conv, self.change = nn.Conv2d(1, 4, 1), change

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        self.change(y)
        return y * 1.5


CHANGES: dict[str, Callable[[Tensor], object]] = {
    "module": nn.ReLU(inplace=True),
    "function": lambda y: F.relu(y, inplace=True),
    "method": lambda y: y.relu_(),
    "slice": lambda y: y.__setitem__((slice(None), 0), 0.0),
    "view": lambda y: y[:, 1:].zero_(),
    "operator": lambda y: y.__imul__(0.0),
}


def infos(folder: Path, side: str, part: str) -> dict[str, object]:
    paths = sorted((folder / "op_infos" / side).glob("*.opinfo"))
    found = [torch.load(path) for path in paths]
    return {info.name: getattr(info, part) for info in found}


@pytest.mark.parametrize("change", CHANGES)
def test_a_later_in_place_operator_does_not_change_what_was_recorded(
    change: str, tmp_path: Path
) -> None:
    """A31 a hook that keeps a reference shows min 0.0."""
    model, x = InPlace(CHANGES[change]).eval(), torch.randn(4, 1, 3, 3)
    p = calibrated(model, x)
    with torch.no_grad():
        conv = model.conv(x)
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    analysis = QuantAnalysis(model, p, "fake_quant", out_dir=str(tmp_path))
    analysis.set_bad_case(x)
    analysis.run()
    row = analysis.compare_per_layer().to_pandas().loc["conv"]
    assert row["base_model_min"] == float(conv.double().min()) < 0
    # float64 sums in another order: only the last bits differ
    assert row["base_model_mean"] == pytest.approx(float(conv.double().mean()))
    outputs, inputs = infos(tmp_path, "baseline", "output"), infos(tmp_path, "analysis", "input")
    assert torch.equal(outputs["conv"][0], conv)
    after = list(inputs).index("conv") + 1
    taken = list(inputs.values())[after][0]
    assert float(taken.min()) < 0, "the recorded input is the value before the change"
    assert [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()] == hooks
    with torch.no_grad():
        assert torch.equal(model(x), run(model, x))

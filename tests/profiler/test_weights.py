"""compare_weights: pairs of weights, the table, histograms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qtune.errors import ArgumentError
from qtune.ops.norm.fold import fold_batch_norm
from qtune.quantization import convert, prepare
from qtune.utils.quant_profiler import compare_weights

from .stages import Net, calibrated, eager_net, prepared_net

NAMES = {"conv.weight", "shared.weight", "head.weight"}


def folded(net: Any) -> Tensor:
    bn = net.bn
    return fold_batch_norm(
        net.conv.weight,
        None,
        mean=bn.running_mean,
        variance=bn.running_var,
        gamma=bn.weight,
        beta=bn.bias,
        eps=bn.eps,
    )[0]


def test_float_and_prepared_weights_are_equal_with_the_norm_folded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    net, model = prepared_net()
    capsys.readouterr()
    pairs = compare_weights(net, model, out_dir=tmp_path)
    assert set(pairs) == NAMES
    assert all(torch.equal(p["float"], p["quantized"]) for p in pairs.values())
    assert torch.equal(pairs["conv.weight"]["float"], folded(net))
    text = (tmp_path / "weight_comparison.txt").read_text()
    assert capsys.readouterr().out == text
    rows = [[c.strip() for c in line.strip("|").split("|")] for line in text.splitlines()]
    assert rows[1] == ["Weight Name", "Similarity", "Atol"]
    assert ["head.weight", "1.0000000", "0.0000000"] in rows


@pytest.mark.parametrize("first", ["float", "prepared"])
def test_a_converted_weight_is_codes_times_scale(first: str, tmp_path: Path) -> None:
    net, model = prepared_net()
    pairs = compare_weights(
        {"float": net, "prepared": model}[first], convert(model), out_dir=tmp_path
    )
    assert set(pairs) == NAMES
    weight = model.shared.weight_fake_quant(model.shared.weight)
    assert torch.equal(pairs["shared.weight"]["quantized"], weight)
    assert torch.equal(pairs["shared.weight"]["float"], net.shared.weight)
    scale = model.conv.weight_fake_quant.scale.reshape(-1, 1, 1, 1)
    difference = (pairs["conv.weight"]["float"] - pairs["conv.weight"]["quantized"]).abs()
    assert bool((difference <= scale * 0.51).all())  # half a step, and the last bits of the product
    assert bool((difference > 0).any())


def test_eager_models_with_a_fused_group(tmp_path: Path) -> None:
    model = eager_net()
    pairs = compare_weights(model, convert(model), out_dir=tmp_path)
    assert set(pairs) == {"conv.weight", "side.weight"}


class Up(nn.Module):
    """A grouped transposed convolution with a batch norm: its channels lie on axis 1."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.bn = nn.ConvTranspose2d(4, 4, 3, 2, groups=2), nn.BatchNorm2d(4)
        nn.init.uniform_(self.bn.weight, 0.5, 2.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.up(x))


def test_a_transposed_convolution_is_compared_in_torchs_shape(tmp_path: Path) -> None:
    x = torch.randn(1, 4, 4, 4, generator=torch.Generator().manual_seed(0))
    net = Up().eval()
    model = calibrated(prepare(net, x), x)
    for other in (model, convert(model)):
        pair = compare_weights(net, other, out_dir=tmp_path)["up.weight"]
        assert pair["float"].shape == pair["quantized"].shape == net.up.weight.shape
        step = float(model.up.weight_fake_quant.scale.max())
        assert float((pair["float"] - pair["quantized"]).abs().max()) <= step  # half a step is due


def test_own_functions_and_the_result_is_a_copy(tmp_path: Path) -> None:
    net, model = prepared_net()
    pairs = compare_weights(net, model, lambda a, b: (a - b).abs().sum(), out_dir=tmp_path)
    pairs["head.weight"]["float"].zero_()
    assert bool(net.head.weight.any())
    with pytest.raises(ArgumentError, match="must return a number or a tensor of one element"):
        compare_weights(net, model, lambda a, b: a - b, out_dir=tmp_path)


def test_histograms_of_both_sides(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    net, model = prepared_net()
    compare_weights(net, model, with_tensorboard=True, out_dir=tmp_path)
    events = EventAccumulator(str(tmp_path / "tensorboard"), {"histograms": 0})
    events.Reload()
    compare_weights(net, model, "L1", True, tmp_path / "here", tmp_path)
    assert len(list((tmp_path / "here").glob("events*"))) == 1
    tags = set(events.Tags()["histograms"])
    assert tags == {f"{name}/{side}" for name in NAMES for side in ("float", "quantized")}


def test_what_can_not_be_compared_is_refused(tmp_path: Path) -> None:
    net, model = prepared_net()
    with pytest.raises(ArgumentError, match="both models are the same object"):
        compare_weights(model, model, out_dir=tmp_path)
    with pytest.raises(ArgumentError, match="expected a prepared or a converted model"):
        compare_weights(net, Net(), out_dir=tmp_path)
    with pytest.raises(ArgumentError, match="expected torch modules but got a str"):
        compare_weights(net, "model.bc", out_dir=tmp_path)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="similarity_func must be one of Cosine, MSE"):
        compare_weights(net, model, "cos", out_dir=tmp_path)

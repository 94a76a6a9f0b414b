"""Grids, ones and zeros from sizes of the input: constants of the exported module."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qtune
from qtune.bpu.convert import convert
from qtune.bpu.ort import run_in_onnxruntime
from qtune.hbir.module import HbirModule
from qtune.prepare.region import FROM_PLAIN
from qtune.quantization import FakeQuantState, prepare, set_fake_quantize
from qtune.quantization.hbdk4 import export, pre_export
from tests.ops.elementwise.rig import randn

X = randn(2, 3, 4, 6)


class Call(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: Tensor) -> Any:
        return self.function(*tensors)


def through_the_line(function: Callable[..., Any], *tensors: Tensor) -> tuple[Any, HbirModule]:
    """The validated model and its integer module, all implementations of which agree."""
    with qtune.march.march("nash-e"):
        prepared = prepare(Call(function).eval(), tensors)
        set_fake_quantize(prepared, FakeQuantState._FLOAT)
        assert torch.equal(prepared(*tensors), function(*tensors))
        set_fake_quantize(prepared, FakeQuantState.CALIBRATION)
        prepared(*tensors)
        set_fake_quantize(prepared, FakeQuantState.VALIDATION)
        module = convert(export(pre_export(prepared), tensors), "nash-e")
    result = module[0](*tensors)
    assert torch.equal(run_in_onnxruntime(module, *tensors), result)
    return prepared, module


def yolo(x: Tensor) -> Tensor:
    height, width = x.shape[2:]
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    grid = torch.stack((columns, rows, rows)).unsqueeze(0).to(x.dtype)
    return (x.sigmoid() * 2 - 0.5 + grid) * 8.0


def encoded(x: Tensor) -> Tensor:
    places = torch.linspace(0, 1, x.shape[-1], device=x.device)
    return x + torch.cos(places * 3).type_as(x)


CALLS: list[Callable[[Tensor], Tensor]] = [
    yolo,
    encoded,
    lambda x: torch.where(x > 0, x, torch.zeros_like(x)),
    lambda x: torch.cat([x, torch.ones(x.shape[0], 1, *x.shape[2:])], 1),
    lambda x: x * torch.full_like(x, 0.5) + x.new_tensor([1.0]),
    lambda x: torch.matmul(x, torch.eye(x.shape[-1])) + x.new_ones(x.shape[-1]).cumsum(0),
    lambda x: x.masked_fill(torch.ones(x.shape[-2:], dtype=torch.bool).triu(1), -2.0),
]


@pytest.mark.parametrize("function", CALLS)
def test_constants_from_sizes_are_folded_at_export(function: Callable[[Tensor], Tensor]) -> None:
    prepared, module = through_the_line(function, X)
    assert prepared.float_ops == ()
    assert not [note for note in module.report if note["kind"] == "stays float"]
    step = max(float(fq.scale) for fq in prepared.modules() if hasattr(fq, "scale"))
    # Each operator rounds once: the chain is four at most.
    assert (module[0](X) - prepared(X)).abs().max() <= 4 * step


def test_the_prepared_model_follows_other_sizes_and_the_log_says_what_does_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, logger="qtune.hbir.export"):
        prepared, _ = through_the_line(yolo, X)
    assert any(
        "sizes of the example" in r.message and "meshgrid" in r.message for r in caplog.records
    )
    other = randn(1, 3, 8, 8)
    set_fake_quantize(prepared, FakeQuantState._FLOAT)
    assert torch.equal(prepared(other), yolo(other))


def test_a_mask_times_a_tensor_is_a_choice() -> None:
    prepared, module = through_the_line(lambda x: (x > 0) * x, X)
    assert [n.op_type for n in module.model.graph].count("QWhere") == 1
    assert torch.equal(module[0](X), prepared(X))


def test_masks_and_integers_become_numbers() -> None:
    ids = torch.tensor([[0, 3], [2, 1]])
    prepared, module = through_the_line(
        lambda x, i: x.flatten(1)[:, :2] * (x > 0).float().mean() + i.float() * 0.5, X, ids
    )
    assert {op.reason for op in prepared.float_ops} == {FROM_PLAIN}
    step = max(float(fq.scale) for fq in prepared.modules() if hasattr(fq, "scale"))
    # Mean, product and sum round once each.
    assert (module[0](X, ids) - prepared(X, ids)).abs().max() <= 3 * step


def test_integer_and_mask_results_stay_what_they_are() -> None:
    """A16: bool and int64 tensors have no observer and keep their dtypes."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.emb = nn.Embedding(5, 6)

        def forward(self, ids: Tensor, x: Tensor) -> Any:
            mask = x > 0
            return torch.where(mask, self.emb(ids), x.masked_fill(mask, 0.0)), ids + 1

    torch.manual_seed(0)
    ids, x = torch.tensor([1, 4, 0]), randn(3, 6)
    with qtune.march.march("nash-e"):
        prepared = prepare(Model().eval(), (ids, x))
        for state in (FakeQuantState.CALIBRATION, FakeQuantState.VALIDATION):
            set_fake_quantize(prepared, state)
            result, following = prepared(ids, x)
            assert torch.equal(following, ids + 1)
        module = convert(export(pre_export(prepared), (ids, x)), "nash-e")
    got, more = module[0](ids, x)
    assert more.dtype == torch.int64
    assert torch.equal(more, ids + 1)
    step = float(prepared.get_submodule("_generated_where_0").activation_post_process.scale)
    # One step: the bar of a choice; code * scale is rounded to float32, hence the factor.
    assert (got - result).abs().max() <= step * (1 + 1e-5)


def test_numbers_on_either_side_keep_the_float_model_bit_for_bit() -> None:
    """A14: 2 + x*3 - (1 - x)/4 + row; no observer on numbers, row has a scale of its own."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.row = nn.Parameter(randn(1, 3, 1, 1, seed=3))

        def forward(self, x: Tensor) -> Tensor:
            return 2 + x * 3 - (1 - x) / 4 + self.row

    with qtune.march.march("nash-e"):
        model = Model().eval()
        prepared = prepare(model, X)
        set_fake_quantize(prepared, FakeQuantState._FLOAT)
        # The division is one of a decomposition: numerics.md section 4 allows 1e-5.
        torch.testing.assert_close(prepared(X), model(X), rtol=1e-5, atol=1e-6)
        set_fake_quantize(prepared, FakeQuantState.CALIBRATION)
        prepared(X)
        set_fake_quantize(prepared, FakeQuantState.VALIDATION)
        module = convert(export(pre_export(prepared), X), "nash-e")
    step = float(prepared.get_submodule("_generated_add_1").activation_post_process.scale)
    assert (module[0](X) - prepared(X)).abs().max() <= 3 * step  # three sums, one step each

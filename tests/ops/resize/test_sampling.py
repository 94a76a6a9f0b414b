"""grid_sample, warp and affine_grid: whole models, coordinates in int16, limits, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from qtune.dtype import qint8
from qtune.march import march
from qtune.nn import GridSample
from qtune.nn.qat import iter_stubs
from qtune.ops.registry import spec
from qtune.ops.resize.affine_grid import base_grid as affine_codes
from qtune.quantization import QconfigSetter, get_qconfig, prepare
from qtune.quantization.qconfig_setter import ModuleNameTemplate
from tests.ops.movement.spelling import operator_of
from tests.ops.steps import steps_apart
from tests.ops.whole import Whole, quiet, whole

__all__ = ["quiet"]

OUTER = 1.5
"""numerics.md section 3: half a step, and half a 256th of an element on steps of 255 codes."""


def dtypes(prepared: nn.Module) -> dict[str, str]:
    return {f"{name} {port}": str(stub.dtype) for name, port, stub in iter_stubs(prepared)}


def base_grid(height: int, width: int) -> torch.Tensor:
    size = [1, 1, height, width]
    return F.affine_grid(torch.eye(2, 3)[None], size, align_corners=False)


class Flow(nn.Module):
    """Features moved along a learnt flow, as in optical flow and video models."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.features = nn.Conv2d(3, 4, 3, padding=1)
        self.flow = nn.Conv2d(4, 2, 3, padding=1)
        self.options = options
        self.register_buffer("base", base_grid(8, 9))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.features(x))
        offset = torch.tanh(self.flow(x)).permute(0, 2, 3, 1) * 0.3
        return F.grid_sample(x, self.base + offset, **self.options)


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border"])
def test_flow_model_keeps_coordinates_in_int16_back_to_the_conv(padding: str, align: bool) -> None:
    result = whole(Flow(padding_mode=padding, align_corners=align), torch.randn(2, 3, 8, 9))
    assert "QSampleBilinear" in [node.op_type for node in result.quantized.model.graph]
    found = dtypes(result.calib)
    assert found["flow output"] == "qint16"
    assert found["_generated_tanh_0 output"] == "qint16"
    assert found["_generated_add_0 output"] == "qint16"
    assert found["_generated_relu_0 output"] == "qint8"
    (fake,), (real,) = result.fake(), result.right()
    # int8 data: a relu'd convolution and the samples of it, each about 1 % of the largest value.
    assert float((fake - real).abs().max() / real.abs().max()) < 0.04


def test_a_rule_for_the_exact_name_still_wins() -> None:
    setter = QconfigSetter(get_qconfig(), [ModuleNameTemplate({"flow": qint8})])
    with march("nash-e"):
        prepared = prepare(Flow(align_corners=False).eval(), (torch.randn(1, 3, 8, 9),), setter)
    found = dtypes(prepared)
    assert found["flow output"] == "qint8"
    assert found["_generated_tanh_0 output"] == "qint16"


def test_explanation_names_who_asks_for_int16(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("QTUNE_RUN_DIR", str(tmp_path))
    with march("nash-e"):
        prepared = prepare(Flow(align_corners=False).eval(), (torch.randn(1, 3, 8, 9),))
    assert prepared.resolution is not None
    decisions = {(d.name, d.port): d for d in prepared.resolution.explanation}
    decision = decisions["flow", "output"]
    assert decision.given == "qint16"
    assert "takes its grid in qint16" in decision.rule


class Sample(nn.Module):
    """A grid that comes from outside."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        return self.function(x, grid)


def sampled(function: Any, size: tuple[int, int], grid: torch.Tensor) -> Whole:
    return whole(Sample(function), torch.randn(2, 3, *size), grid)


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("padding", ["zeros", "border"])
@pytest.mark.parametrize("align", [False, True])
def test_integers_follow_grid_sample_also_outside_of_the_map(
    mode: str, padding: str, align: bool
) -> None:
    def function(x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        return F.grid_sample(x, grid, mode, padding, align)

    torch.manual_seed(3)
    if mode == "nearest":  # stay clear of the middle between two elements: there both are right
        reach = torch.tensor([6, 4]) if align else torch.tensor([7, 5])
        element = torch.randint(-2, 9, (2, 6, 5, 2)) + torch.empty(2, 6, 5, 2).uniform_(-0.4, 0.4)
        grid = (2 * element - torch.tensor([6, 4])) / reach
    else:
        grid = torch.randn(2, 6, 5, 2)
    result = sampled(function, (5, 7), grid)
    assert steps_apart(result) <= (OUTER if mode == "bilinear" else 0.0)
    assert "QPositions" in [node.op_type for node in result.quantized.model.graph]


@pytest.mark.parametrize("padding", ["zeros", "border"])
def test_grid_sample_layer_takes_absolute_positions(padding: str) -> None:
    layer = GridSample(padding_mode=padding)
    x = torch.arange(12.0).view(1, 1, 3, 4)
    grid = torch.tensor([[[[0.0, 0.0], [3.0, 2.0], [1.5, 1.0], [-9.0, 0.0]]]])
    outside = 0.0 if padding == "zeros" else x[0, 0, 0, 0].item()
    # float32 positions of a map of 3 x 4
    assert layer(x, grid).ravel().tolist() == pytest.approx([0.0, 11.0, 5.5, outside], abs=1e-5)
    far = torch.rand(2, 4, 5, 2) * 9 - 1
    result = whole(Sample(layer), torch.randn(2, 3, 6, 8), far)
    assert result.calib.get_submodule("function").op == "warp"
    assert steps_apart(result) <= OUTER


def test_spatial_transformer_runs_in_integers() -> None:
    class Transformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.theta = nn.Linear(4, 6)

        def forward(self, x: torch.Tensor, code: torch.Tensor) -> torch.Tensor:
            theta = self.theta(code).view(-1, 2, 3)
            grid = F.affine_grid(theta, list(x.shape), align_corners=False)
            return F.grid_sample(x, grid, align_corners=False)

    result = whole(Transformer(), torch.randn(2, 3, 6, 8), torch.randn(2, 4))
    found = dtypes(result.calib)
    assert found["theta output"] == "qint16"
    assert found["_generated_affine_grid_0 output"] == "qint16"
    operators = [node.op_type for node in result.quantized.model.graph]
    assert "QMatMul16x16" in operators
    # The grid's own rounding moves samples by less than a 256th of an element more.
    assert steps_apart(result) <= OUTER + 1.0


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize(("height", "width"), [(5, 7), (2, 4), (96, 128), (211, 223)])
def test_base_of_an_affine_grid_is_exact_or_within_half_a_step(
    height: int, width: int, align: bool
) -> None:
    codes, steps = affine_codes(height, width, align)
    # torch makes its base grid in float32
    real = F.affine_grid(torch.eye(2, 3)[None], [1, 2, height, width], align).view(-1, 2).numpy()
    limit = 1e-6 if steps != 1 << 14 else 0.5 / steps + 1e-6
    assert np.abs(codes[:, :2] / steps - real).max() <= limit
    assert (codes[:, 2] == steps).all()
    assert np.abs(codes).max() <= 32767


def test_marches_limit_maps_and_grids() -> None:
    for name in ("grid_sample", "warp"):
        rules = {rule.series[0]: rule for rule in spec(name).march}
        assert set(rules) == {"bayes", "nash"}
        assert rules["nash"].operands["grid"] == ("qint16",)
        assert rules["bayes"].operands["grid"] == ("qint8", "qint16")
        check = rules["nash"].check
        assert check is not None
        attrs = {"mode": "bilinear"}
        assert check(attrs, [(1, 3, 720, 1024), (1, 2, 2, 2)], (1, 3, 2, 2)) is None
        assert "1025" in str(check(attrs, [(1, 3, 2, 1025), (1, 2, 2, 2)], (1, 3, 2, 2)))
        assert "737280" in str(check(attrs, [(1, 3, 1000, 1000), (1, 2, 2, 2)], (1, 3, 2, 2)))


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"mode": "bicubic"}, "bicubic"),
        ({"padding_mode": "reflection"}, "reflection"),
    ],
)
def test_other_modes_are_refused_by_name(options: dict[str, Any], word: str) -> None:
    x, grid = torch.randn(1, 2, 4, 4), torch.zeros(1, 3, 3, 2)
    with pytest.raises(NotImplementedError, match=word):
        operator_of(lambda: F.grid_sample(x, grid, align_corners=False, **options))


def test_volumes_are_refused_by_name() -> None:
    x, grid = torch.randn(1, 2, 4, 4, 4), torch.zeros(1, 3, 3, 3, 3)
    with pytest.raises(NotImplementedError, match="5 dimensions"):
        operator_of(lambda: F.grid_sample(x, grid, align_corners=False))
    with pytest.raises(NotImplementedError, match="5 dimensions"):
        operator_of(lambda: F.affine_grid(torch.zeros(1, 3, 4), [1, 2, 4, 4, 4], False))


def test_layer_refuses_what_it_does_not_do() -> None:
    with pytest.raises(ValueError, match="nearest"):
        GridSample(mode="nearest")

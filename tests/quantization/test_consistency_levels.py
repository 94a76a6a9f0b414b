"""Consistency levels: what each changes, that a model remembers its own, and how far it goes."""

from __future__ import annotations

import copy
import io
import logging
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune.bpu import compiler
from qtune.bpu.estimate import estimate
from qtune.bpu.ort import run_in_onnxruntime
from qtune.hbir.module import HbirModule
from qtune.march import March, march
from qtune.modes import consistency_level
from qtune.nn import GridSample
from qtune.nn.prepared import PreparedModel
from qtune.nn.qat import iter_stubs
from qtune.qat_mode import ConsistencyStrategy
from qtune.quantization import (
    DeQuantStub,
    FakeQuantState,
    QuantStub,
    hbdk4,
    set_fake_quantize,
)

from .flow import calib, op, prep, run
from .levels import (
    LEVELS,
    MODELS,
    calibrated,
    converted,
    data,
    distances,
    float_model,
    mean_distance,
)

EACH_LEVEL = pytest.mark.parametrize("level", LEVELS, ids=str)
EACH_MODEL = pytest.mark.parametrize("name", MODELS)


def leaves(result: Any) -> list[Tensor]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


@EACH_MODEL
def test_distance_falls_from_level_to_level(name: str) -> None:
    """numerics.md section 4: unset >= 1 >= 2 >= 3 >= 4, and unset >= 0."""
    mean = {level: mean_distance(name, level) for level in LEVELS}
    assert mean[None] >= mean[1] >= mean[2] >= mean[3] >= mean[4]
    assert mean[None] >= mean[0]
    assert mean[None] > 0
    assert mean[4] == 0


@pytest.mark.parametrize("name", ["digits", "residual"])
@pytest.mark.parametrize("level", [2, 3, 4])
def test_cnn_converts_without_any_difference_from_level_2_on(name: str, level: int) -> None:
    """Neither at an operator nor at the outputs, on data that calibration never saw."""
    p, quantized = calibrated(name, level), converted(name, level)
    unseen = data(name, 5, 11)
    assert set(distances(p, quantized, unseen).values()) == {0.0}
    for x in unseen:
        assert all(map(torch.equal, leaves(run(p, x)), leaves(quantized[0](x))))


@pytest.mark.parametrize("level", [2, 3, 4])
def test_block_with_tables_and_resize_has_no_difference_either(level: int) -> None:
    p, quantized = calibrated("block", level), converted("block", level)
    (x,) = data("block", 1, 1)
    assert set(distances(p, quantized, [x]).values()) == {0.0}
    assert torch.equal(run(p, x), quantized[0](x))


def trained(name: str, level: int | None) -> PreparedModel:
    """Calibrated, then one step of training, as a user does it."""
    with consistency_level(level):
        p = prep(float_model(name), data(name, 1, 0)[0])
    calib(p, data(name, 2, 1))
    set_fake_quantize(p.train(), FakeQuantState.QAT)
    optimizer = torch.optim.SGD(p.parameters(), lr=1e-3)
    first = leaves(p(data(name, 1, 5)[0]))[0]
    first.square().mean().backward()
    assert all(bool(torch.isfinite(v.grad).all()) for v in p.parameters() if v.grad is not None)
    optimizer.step()
    set_fake_quantize(p.eval(), FakeQuantState.VALIDATION)
    return p


@EACH_LEVEL
def test_every_stage_of_every_level_agrees(level: int | None, tmp_path: Path) -> None:
    """Trained, exported, saved, loaded, converted: fast kernels, reference, ONNX Runtime."""
    p, (x,) = trained("residual", level), data("residual", 1, 6)
    hbdk4.export(p, x).save(tmp_path / "qat.bc")
    qat = compiler.load(tmp_path / "qat.bc")
    assert qat.consistency_level == level
    assert qat._high_precision_qpp is (level == 0)
    assert all(map(torch.equal, leaves(run(p, x)), leaves(qat[0](x))))
    compiler.save(hbdk4.convert(qat), tmp_path / "quantized.bc")
    quantized = compiler.load(tmp_path / "quantized.bc")
    fast = leaves(quantized[0](x))
    assert all(map(torch.equal, leaves(reference_run(quantized, x)), fast))
    by_ort = leaves(run_in_onnxruntime(quantized, x))
    assert all(torch.equal(torch.as_tensor(got), y) for got, y in zip(by_ort, fast, strict=True))
    if level is not None and level >= 2:
        assert all(map(torch.equal, leaves(run(p, x)), fast))


def reference_run(module: HbirModule, x: Tensor) -> Any:
    function = module[0]
    return tuple(function.run({function.inputs[0].name: x}, mode="reference").values())


@EACH_LEVEL
def test_power_of_two_scales(level: int | None) -> None:
    p = calibrated("residual", level)
    for _, kind, quantizer in iter_stubs(p):
        fraction, _ = np.frexp(quantizer.scale.numpy())
        wanted = level is not None and level >= (2 if kind == "weight" else 1)
        assert bool((fraction == 0.5).all()) is wanted


def node_types(module: HbirModule) -> list[str]:
    return [node.op_type for node in module.model.graph]


def multiplier_bits(module: HbirModule) -> set[int]:
    """Bits of all multipliers of the module."""
    constants = module.model.graph.initializers.values()
    found = [v.const_value.numpy() for v in constants if v.name.endswith((".m", "_m", "/m"))]
    return {int(abs(int(m))).bit_length() for array in found for m in array.ravel()}


def test_level_0_requantizes_apart_with_31_bits() -> None:
    quantized = converted("digits", 0)
    assert multiplier_bits(quantized) == {31}
    assert "QConvAcc" in node_types(quantized)
    assert "QConvAddAcc" in node_types(quantized)
    assert "QConv" not in node_types(quantized)
    assert calibrated("digits", 0)(data("digits", 1, 2)[0]).equal(
        calibrated("digits", None)(data("digits", 1, 2)[0])
    )  # no retraining: the prepared model is that of no level


def test_level_1_has_31_bits_and_level_2_short_shifts() -> None:
    assert multiplier_bits(converted("digits", None)) == {15}
    assert multiplier_bits(converted("digits", 1)) == {31, 15}  # the mean's M is a power of two
    assert multiplier_bits(converted("digits", 2)) == {15}
    assert "QConvAdd" in node_types(converted("digits", 1))


def test_level_1_adds_the_integer_bias() -> None:
    p = copy.deepcopy(calibrated("residual", 1))
    stem, quant = op(p, "stem"), op(p, "quant")
    step = quant.activation_post_process.scale.double() * stem.weight_fake_quant.scale.double()
    steps = stem.fill((torch.zeros(1), None, None))[2].double() / step
    # float32 holds the bias with 24 bits: its codes are whole numbers but for 2**-24
    assert torch.allclose(steps, steps.round(), rtol=2**-23, atol=0)
    raw = stem.bias.detach().double() / step
    assert torch.equal(steps.round(), torch.floor(raw + 0.5))
    assert not torch.equal(stem.bias, stem.fill((torch.zeros(1), None, None))[2])


def test_other_marches_warn_and_keep_the_usual_rules(caplog: pytest.LogCaptureFixture) -> None:
    with march(March.NASH_P), consistency_level(2):
        p = prep(float_model("digits"), data("digits", 1, 0)[0])
    assert p.consistency_level is None
    assert "consistency level 2 has no effect on nash-p, only on nash-e and nash-m" in caplog.text
    calib(p, data("digits", 1, 1))
    assert not any(q.power_of_two for _, _, q in iter_stubs(p))


def test_convert_for_another_march_warns(caplog: pytest.LogCaptureFixture) -> None:
    qat = hbdk4.export(calibrated("digits", 0), data("digits", 1, 0)[0])
    quantized = hbdk4.convert(qat, "nash-p")
    assert "convert: consistency level 0 has no effect on nash-p" in caplog.text
    assert "QConvAcc" not in node_types(quantized)
    assert multiplier_bits(quantized) == {15}


def test_level_belongs_to_the_model_and_not_to_the_process() -> None:
    ConsistencyStrategy.set_consistency_level(2)
    try:
        p = prep(float_model("digits"), data("digits", 1, 0)[0])
    finally:
        ConsistencyStrategy.set_consistency_level(None)
    calib(p, data("digits", 1, 1))
    (x,) = data("digits", 1, 9)
    for twin in (copy.deepcopy(p), pickle.loads(pickle.dumps(p))):
        assert twin.consistency_level == 2
        set_fake_quantize(twin, FakeQuantState.CALIBRATION)
        twin(10 * x)
        set_fake_quantize(twin, FakeQuantState.VALIDATION)
        assert torch.equal(run(twin, x), hbdk4.convert(hbdk4.export(twin, x))[0](x))
    assert torch.equal(run(p, x), run(calibrated("digits", 2), x))


@pytest.mark.parametrize(("trained_on", "loaded_on"), [(None, 2), (2, None), (1, 2), (0, 1)])
def test_state_of_another_level_asks_for_retraining(
    trained_on: int | None, loaded_on: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    buffer = io.BytesIO()
    torch.save(calibrated("digits", trained_on).state_dict(), buffer)
    buffer.seek(0)
    p = copy.deepcopy(calibrated("digits", loaded_on))
    p.load_state_dict(torch.load(buffer))
    assert "Levels 1 to 4 need retraining" in caplog.text
    (x,) = data("digits", 1, 9)
    assert torch.equal(run(p, x), run(calibrated("digits", loaded_on), x))


@pytest.mark.parametrize(("trained_on", "loaded_on"), [(None, 0), (0, None), (2, 2)])
def test_state_of_a_like_level_loads_in_silence(
    trained_on: int | None, loaded_on: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    p = copy.deepcopy(calibrated("digits", loaded_on))
    with caplog.at_level(logging.WARNING):
        p.load_state_dict(calibrated("digits", trained_on).state_dict())
    assert caplog.text == ""


def test_given_scale_is_rounded_up_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with consistency_level(1):
        p = prep(nn.Sequential(QuantStub(scale=0.1), nn.Conv2d(3, 4, 1)), torch.randn(1, 3, 4, 4))
    assert op(p, "0").activation_post_process.scale.tolist() == [0.125]
    assert "rounds the given scale [0.1" in caplog.text


class Sampled(nn.Module):
    """A map sampled by grid_sample and by warp, at coordinates that come from outside."""

    def __init__(self, align_corners: bool) -> None:
        super().__init__()
        self.quant, self.grid, self.dequant = QuantStub(), QuantStub(), DeQuantStub()
        self.conv = nn.Conv2d(3, 4, 3)
        self.warp = GridSample(padding_mode="border")
        self.align_corners = align_corners

    def forward(self, x: Tensor, grid: Tensor) -> tuple[Tensor, Tensor]:
        y, at = self.conv(self.quant(x)), self.grid(grid)
        sampled = F.grid_sample(y, at, align_corners=self.align_corners)
        return self.dequant(sampled), self.dequant(self.warp(y, at * 5.0))


@pytest.mark.parametrize("align_corners", [True, False])
def test_sampling_has_no_difference_on_level_4(align_corners: bool) -> None:
    x = torch.randn(2, 3, 15, 17), torch.rand(2, 9, 8, 2) * 2.4 - 1.2
    outputs = {}
    for level in (3, 4):
        with consistency_level(level):
            p = prep(Sampled(align_corners), x)
        calib(p, [x])
        qat = hbdk4.export(p, x)
        assert all(map(torch.equal, p(*x), qat[0](*x)))
        outputs[level] = p(*x), hbdk4.convert(qat)[0](*x)
    assert all(map(torch.equal, *outputs[4]))
    assert not any(map(torch.equal, *outputs[3]))
    by_ort = map(torch.as_tensor, run_in_onnxruntime(qat, *x))
    assert all(map(torch.equal, by_ort, outputs[4][0]))


def test_tables_pass_the_gradient_of_their_function() -> None:
    p = copy.deepcopy(calibrated("block", 3))
    (x,) = data("block", 1, 1)
    x = x.requires_grad_()
    p(x).sum().backward()
    assert x.grad is not None
    assert 0 < float(x.grad.abs().max()) < float("inf")


class Functional(nn.Module):
    """A convolution by function, and a linear that is called on two grids."""

    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = QuantStub(), DeQuantStub()
        self.weight = nn.Parameter(torch.randn(4, 3, 3, 3))
        self.bias = nn.Parameter(torch.randn(4))
        self.shared = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = F.conv2d(self.quant(x), self.weight, self.bias)
        z = self.shared(F.relu(self.shared(y.mean((2, 3)))))
        return self.dequant(y), self.dequant(z)


@pytest.mark.parametrize("level", [1, 2])
def test_bias_given_to_a_function_is_exported_on_its_grid(level: int) -> None:
    x = torch.randn(2, 3, 9, 9)
    with consistency_level(level):
        p = prep(Functional(), x)
    calib(p, [x])
    qat = hbdk4.export(p, x)
    assert all(map(torch.equal, run(p, x), qat[0](x)))
    if level == 2:
        assert torch.equal(run(p, x)[0], hbdk4.convert(qat)[0](x)[0])


def test_model_that_looked_up_in_its_tables_can_be_copied() -> None:
    p = calibrated("block", 3)
    (x,) = data("block", 1, 1)
    expected = run(p, x)
    for twin in (copy.deepcopy(p), pickle.loads(pickle.dumps(p))):
        assert torch.equal(run(twin, x), expected)
        op(twin, "_generated_softmax_0.exp").activation_post_process.set_qparams(2.0**-7)
        assert not torch.equal(run(twin, x), expected)
    assert torch.equal(run(p, x), expected)


def test_level_0_costs_more_in_the_static_estimate() -> None:
    usual = estimate(converted("digits", None).model, "nash-e").latency_us
    apart = estimate(converted("digits", 0).model, "nash-e").latency_us
    exact = estimate(converted("digits", 2).model, "nash-e").latency_us
    assert usual is not None
    assert apart is not None
    assert apart > usual
    assert exact <= usual

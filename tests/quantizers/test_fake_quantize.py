import copy

import numpy as np
import pytest
import torch
from torch import nn

from qtune.dtype import qint8, qint16
from qtune.errors import ArgumentError, NonFiniteError, NotCalibratedError
from qtune.quantizers.clip import ClipObserver
from qtune.quantizers.fake_quantize import FakeQuantize, unobserved
from qtune.quantizers.fixed import FixedScaleObserver
from qtune.quantizers.mse import MSEObserver
from qtune.quantizers.observer import (
    MinMaxObserver,
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
)
from qtune.quantizers.scope import forward_scope
from qtune.quantizers.state import FakeQuantState, set_fake_quantize

CALIBRATION, VALIDATION, QAT = (
    FakeQuantState.CALIBRATION,
    FakeQuantState.VALIDATION,
    FakeQuantState.QAT,
)
FLOAT = FakeQuantState._FLOAT


def expected(x, scale, low=-128, high=127):
    """numerics.md section 1 in plain torch, computed in float32."""
    return torch.clamp(torch.floor(x.float() / scale + 0.5), low, high) * scale


def calibrated(data, state=VALIDATION, **options):
    fq = FakeQuantize(**options)
    fq.state = CALIBRATION
    fq(data)
    fq.state = state
    return fq


def weight_quantizer(channels=3, **options):
    return FakeQuantize(
        MovingAveragePerChannelMinMaxObserver, ch_axis=0, channel_len=channels, **options
    )


def test_validation_quantizes_with_the_calibrated_scale():
    x = torch.linspace(-1.2, 3, 301)
    fq = calibrated(x)
    scale = torch.tensor(3.0) / 127.5
    assert fq.scale.tolist() == [scale.item()]
    assert torch.equal(fq(x * 2), expected(x * 2, scale))
    assert fq.scale.tolist() == [scale.item()], "VALIDATION observes nothing"


def test_published_value_quantizes_to_the_published_result():
    """numerics.md section 6: absmax 0.9998382 gives 127 steps, 0.9959173."""
    x = torch.tensor([0.9998382])
    assert f"{calibrated(x)(x).item():.7f}" == "0.9959173"


def test_calibration_observes_and_passes_the_value_in_both_modes():
    x = torch.tensor([1.0, -2.0])
    for training in (True, False):
        fq = FakeQuantize().train(training)
        fq.state = CALIBRATION
        assert fq(x) is x
        assert fq.scale.item() == torch.tensor(2.0).div(127.5).item()


def test_eval_after_calibration_keeps_calibrating():
    """The documented mistake (numerics.md section 5): the state is the user's, not the mode's."""
    fq = calibrated(torch.tensor([1.0]), state=CALIBRATION, averaging_constant=1)
    fq.eval()
    fq(torch.tensor([4.0]))
    assert fq.scale.item() == torch.tensor(4.0).div(127.5).item()


def test_qat_observes_only_while_training():
    fq = FakeQuantize(averaging_constant=1)
    x = torch.tensor([1.0])
    assert torch.equal(fq(x), expected(x, x / 127.5))
    fq.eval()
    before = copy.deepcopy(fq.state_dict())
    y = fq(x * 100)
    assert torch.equal(y, expected(x * 100, x / 127.5))
    assert all(torch.equal(v, before[k]) for k, v in fq.state_dict().items())
    fq.train()
    fq(x * 100)
    assert fq.scale.item() == torch.tensor(100.0).div(127.5).item()


def test_float_state_returns_the_very_tensor():
    fq = FakeQuantize()
    fq.state = FLOAT
    x = torch.tensor([1.23])
    assert fq(x) is x
    assert not fq.observed


@pytest.mark.parametrize("state", [VALIDATION, QAT])
def test_unobserved_quantize_raises_with_its_name(state):
    """A07: a scale of 1 is never used silently."""
    fq = FakeQuantize(name="head.conv").eval()
    fq.state = state
    with pytest.raises(NotCalibratedError, match=r"nothing is calibrated for: head\.conv"):
        fq(torch.ones(2))


def test_scope_collects_all_unobserved_names_and_raises_once():
    """A07."""
    fqs = [FakeQuantize(name=f"layer{i}").eval() for i in range(3)]
    x = torch.ones(2)

    def forward():
        with forward_scope():
            return [fq(x) for fq in fqs]

    with pytest.raises(NotCalibratedError, match="for: layer0, layer1, layer2\\. They"):
        forward()


def test_scopes_nest_into_the_outer_one():
    with forward_scope() as outer:
        with forward_scope() as inner:
            assert inner is outer


def test_an_error_inside_a_scope_is_not_replaced():
    fq = FakeQuantize(name="a").eval()

    def forward():
        with forward_scope():
            fq(torch.ones(1))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        forward()


def test_unobserved_lists_names_until_data_came():
    """A07."""
    model = nn.ModuleDict({"a": FakeQuantize(), "b": FakeQuantize(name="b.weight")})
    assert unobserved(model) == ["a", "b.weight"]
    set_fake_quantize(model, CALIBRATION)
    model["a"](torch.ones(1))
    assert unobserved(model) == ["b.weight"]
    model["b"](torch.ones(1))
    assert unobserved(model) == []


@pytest.mark.parametrize("state", list(FakeQuantState))
def test_empty_tensors_pass_in_every_state(state):
    """A06: also before any data."""
    fq = FakeQuantize(name="a").eval()
    fq.state = state
    assert fq(torch.empty(0, 3, 4)).shape == (0, 3, 4)
    assert not fq.observed


def test_nan_while_observing_names_the_fake_quantize():
    fq = FakeQuantize(name="stem.conv")
    fq.state = CALIBRATION
    with pytest.raises(NonFiniteError, match=r"stem\.conv: NaN in the data"):
        fq(torch.tensor([float("nan")]))


def test_validation_passes_nan_and_saturates_infinity():
    """A03."""
    fq = FakeQuantize(FixedScaleObserver, scale=0.05)
    fq.state = VALIDATION
    y = fq(torch.tensor([0.3, torch.inf, -torch.inf, torch.nan, 9.0]))
    scale = torch.tensor(0.05)
    assert torch.equal(y[[0, 1, 2, 4]], torch.tensor([6.0, 127.0, -128.0, 127.0]) * scale)
    assert y[3].isnan()


@pytest.mark.parametrize("dtype", [torch.half, torch.bfloat16, torch.double])
def test_output_keeps_the_dtype_and_scales_stay_float32(dtype):
    """A20."""
    fq = calibrated(torch.tensor([59000.0, -59000.0, 1.0], dtype=torch.half)).to(dtype)
    assert fq.scale.dtype == fq.activation_post_process.absmax.dtype == torch.float32
    assert fq.scale.item() == torch.tensor(59008.0).div(127.5).item()
    x = torch.tensor([59000.0, 700.0, -3.0], dtype=dtype)
    y = fq(x)
    assert y.dtype == dtype
    wide = x if dtype == torch.double else x.float()
    scale = fq.scale.to(wide.dtype)
    assert torch.equal(
        y, (torch.clamp(torch.floor(wide / scale + 0.5), -128, 127) * scale).to(dtype)
    )


def test_training_under_autocast_has_finite_gradients():
    """A20."""
    weight = nn.Parameter(torch.randn(4, 4, generator=torch.Generator().manual_seed(0)))
    fq = weight_quantizer(4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = torch.ones(2, 4) @ fq(weight).t()
    y.sum().backward()
    assert weight.grad.isfinite().all()


def test_gradient_is_one_in_range_and_zero_outside():
    fq = FakeQuantize(FixedScaleObserver, scale=1.0)
    x = torch.tensor([127.4, 127.6, -128.4, -128.6, 0.3], requires_grad=True)
    fq(x).sum().backward()
    assert x.grad.tolist() == [1.0, 0.0, 1.0, 0.0, 1.0]


def test_a_fake_quantize_called_twice_in_training_can_go_backward():
    """The scale changes between the two calls; the first one's gradient must not."""
    fq = FakeQuantize(averaging_constant=1)
    x = torch.tensor([0.5, -1.0], requires_grad=True)
    with forward_scope():
        y = fq(x) + fq(x * 3)
    y.sum().backward()
    assert x.grad.tolist() == [4.0, 4.0]


@pytest.mark.parametrize("axis", [0, 1, 3])
def test_strided_inputs_equal_contiguous_ones(axis):
    """A19."""
    base = torch.randn(2, 8, 6, 6, generator=torch.Generator().manual_seed(0))
    for view in (base.chunk(2, 1)[1], base.transpose(1, 3), base[:, ::2], base.flip(0)):
        for options in ({}, {"observer": MinMaxObserver, "ch_axis": axis}):
            fq = calibrated(view, **options)
            assert torch.equal(fq(view), fq(view.contiguous()))
            assert torch.equal(fq.scale, calibrated(view.contiguous(), **options).scale)


def test_non_tensors_and_integers_are_refused_by_name():
    fq = FakeQuantize(name="quant")
    for value, got in ((np.ones(3), "ndarray"), (3, "int"), (torch.ones(2).int(), "torch.int32")):
        with pytest.raises(ArgumentError, match=f"quant: expected a floating torch tensor.*{got}"):
            fq(value)


def test_set_qparams_stays_when_data_are_observed():
    fq = FakeQuantize()
    fq.set_qparams(1 / 128)
    assert fq.observed
    fq(torch.tensor([50.0]))
    assert fq.scale.tolist() == [1 / 128]
    fq.set_qparams(torch.tensor([0.5]), zero_point=torch.tensor([0]))
    assert fq.scale.tolist() == [0.5]


def test_set_qparams_per_channel():
    fq = weight_quantizer(3)
    fq.set_qparams(torch.tensor([0.1, 0.2, 0.3]))
    assert torch.equal(fq.scale, torch.tensor([0.1, 0.2, 0.3]))
    with pytest.raises(ArgumentError, match="expected 1 or 3 positive"):
        fq.set_qparams(torch.tensor([0.1, 0.2]))
    with pytest.raises(ArgumentError, match="zero_point"):
        fq.set_qparams(0.1, zero_point=1)


def test_dtype_change_rederives_the_scale_bit_for_bit():
    """A36."""
    x = torch.linspace(-3, 3, 1001)
    for observer in (MinMaxObserver, MSEObserver):
        fq = calibrated(x, observer=observer)
        first = fq.scale.clone()
        fq.set_dtype("qint16")
        assert torch.equal(fq.scale, calibrated(x, observer=observer, dtype=qint16).scale)
        assert fq.scale.item() == torch.tensor(3.0).div(32767.5).item()
        assert (fq(x) - x).abs().max() <= 4.6e-05, "half a step of 9.155e-05, and float32 rounding"
        assert (fq.quant_min, fq.quant_max) == (-32768, 32767)
        fq.set_dtype(qint8)
        assert torch.equal(fq.scale, first)


def test_dtype_change_of_a_given_scale_keeps_its_range():
    """A36: T / 128 becomes T / 32768 and comes back."""
    fixed = FakeQuantize(FixedScaleObserver, scale=0.7)
    by_hand = FakeQuantize()
    by_hand.set_qparams(0.7)
    for fq in (fixed, by_hand):
        first = fq.scale.clone()
        fq.set_dtype(qint16)
        assert torch.equal(fq.scale, first / 256)
        fq.set_dtype(qint8)
        assert torch.equal(fq.scale, first)


def test_dtype_change_before_data_takes_effect_on_data():
    fq = FakeQuantize()
    fq.set_dtype(qint16)
    assert not fq.observed
    fq(torch.tensor([1.0]))
    assert fq.scale.item() == torch.tensor(1.0).div(32767.5).item()


def test_fixed_scale_is_always_observed_and_never_moves():
    fq = FakeQuantize(FixedScaleObserver, scale=1 / 128).eval()
    assert fq.observed
    assert fq(torch.tensor([0.5])).tolist() == [0.5]
    fq.train()
    fq(torch.tensor([100.0]))
    assert fq.scale.tolist() == [1 / 128]


def test_observed_range_is_that_of_the_data_inside_the_scale():
    fq = calibrated(torch.tensor([-1.0, 3.0]))
    low, high = fq.observed_range()
    assert (low.item(), high.item()) == (-1.0, (fq.scale * 127).item())
    fixed = FakeQuantize(FixedScaleObserver, scale=0.5)
    assert [v.item() for v in fixed.observed_range()] == [-64.0, 63.5]


def test_prints_as_in_the_documents():
    fq = FakeQuantize()
    fq(torch.tensor([-0.9995, 0.9995]))
    assert repr(fq) == (
        "FakeQuantize(\n"
        "  fake_quant_enabled=tensor([1], dtype=torch.uint8), "
        "observer_enabled=tensor([1], dtype=torch.uint8),            "
        "quant_min=-128, quant_max=127, dtype=qint8, qscheme=torch.per_tensor_symmetric, "
        "ch_axis=-1,         scale=tensor([0.0078]), zero_point=tensor([0])\n"
        "  (activation_post_process): MovingAverageMinMaxObserver("
        "min_val=tensor([-0.9995]), max_val=tensor([0.9995]))\n"
        ")"
    )
    fq.state = CALIBRATION
    assert "fake_quant_enabled=tensor([0]" in repr(fq)
    fq.state = VALIDATION
    assert "observer_enabled=tensor([0]" in repr(fq)
    weights = weight_quantizer(2)
    assert "qscheme=torch.per_channel_symmetric, ch_axis=0" in repr(weights)
    assert "zero_point=tensor([0, 0])" in repr(weights)


def test_with_args_passes_observer_options():
    fq = FakeQuantize.with_args(observer=MinMaxObserver, dtype="qint16", averaging_constant=0.5)()
    assert fq.dtype is qint16
    assert fq.activation_post_process.averaging_constant == 0.5
    assert type(FakeQuantize().activation_post_process) is MovingAverageMinMaxObserver


def test_options_that_the_observer_does_not_have_are_refused():
    with pytest.raises(ArgumentError, match="MovingAverageMinMaxObserver takes no ch_axis"):
        FakeQuantize(ch_axis=0)
    with pytest.raises(ArgumentError, match="ClipObserver needs clip_value"):
        FakeQuantize(ClipObserver)
    with pytest.raises(ArgumentError, match="takes no stride"):
        FakeQuantize(stride=2)
    with pytest.raises(ArgumentError, match="expected an observer class"):
        FakeQuantize(observer="min_max")


@pytest.mark.parametrize("options", [{}, {"bounds": True}, {"power_of_two": True}])
def test_scale_on_another_grid_is_the_one_that_set_dtype_gives(options):
    fq = FakeQuantize()
    if "bounds" in options:
        fq.bounds = (0.0, 1.0)
    set_fake_quantize(fq, FakeQuantState.CALIBRATION)
    fq(torch.tensor([0.1, 0.3]))
    if "power_of_two" in options:
        fq.use_power_of_two()
    expected = fq.scale_on(qint16)
    assert torch.equal(fq.scale_on(fq.dtype), fq.scale)
    fq.set_dtype(qint16)
    assert torch.equal(fq.scale, expected)

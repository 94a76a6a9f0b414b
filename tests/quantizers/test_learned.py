"""What LSQ and PACT share: a scale that is trained, kept positive, saved as any other."""

import math

import pytest
import torch
from torch import nn

from qtune.dtype import qint8
from qtune.errors import ArgumentError, NonFiniteError, NotCalibratedError
from qtune.quantizers.fake_quantize import FakeQuantize
from qtune.quantizers.fixed import FixedScaleObserver
from qtune.quantizers.observer import MinMaxObserver
from qtune.quantizers.scope import forward_scope
from qtune.quantizers.state import FakeQuantState, set_fake_quantize

from .learned import (
    CALIBRATION,
    FLOAT,
    KINDS,
    LSQ,
    PACT,
    QAT,
    calibrated,
    expected,
    learned_of,
    per_channel,
)


@KINDS
def test_calibration_sets_the_scale_of_the_data_and_passes_the_value(kind):
    x = torch.linspace(-1.2, 3, 301)
    fq = calibrated(kind, x)
    scale = torch.tensor(3.0) / 127.5
    assert fq.scale.tolist() == [scale.item()]
    assert torch.equal(fq(2 * x), expected(2 * x, scale))
    set_fake_quantize(fq, CALIBRATION)
    assert fq(x) is x


@KINDS
def test_float_state_returns_the_very_tensor(kind):
    fq = kind()
    set_fake_quantize(fq, FLOAT)
    x = torch.ones(3)
    assert fq(x) is x


@KINDS
def test_training_observes_and_keeps_the_scale(kind):
    fq = calibrated(kind, torch.tensor([1.0, -1.0]), averaging_constant=1)
    set_fake_quantize(fq, QAT)
    before = fq.scale.tolist()
    fq(torch.tensor([5.0]))
    assert fq.scale.tolist() == before
    assert fq.activation_post_process.max_val.tolist() == [5.0]


@KINDS
@pytest.mark.parametrize(("optimizer", "rate"), [(torch.optim.SGD, 9.0), (torch.optim.Adam, 3.0)])
def test_the_scale_stays_positive_whatever_the_learning_rate(kind, optimizer, rate):
    torch.manual_seed(0)
    fq = calibrated(kind, torch.randn(100))
    set_fake_quantize(fq, QAT)
    stepper = optimizer(fq.parameters(), lr=rate)
    negative = 0
    for _ in range(30):
        stepper.zero_grad()
        fq(torch.full((64,), 1e30)).sum().backward()  # all saturates: the scale shrinks
        stepper.step()
        negative += int(fq._parameters[fq.learns].data.item() <= 0)
        assert fq.state_dict()["scale"].min() >= 2**-40
        assert fq.scale.min() >= 2**-40
        assert learned_of(fq).min() > 0
    assert negative, "the steps are large enough to cross zero"


@KINDS
def test_the_parameter_is_the_absolute_value_of_what_the_optimizer_left(kind):
    fq = kind(**({"scale": 0.5} if kind is LSQ else {"alpha": 64.0}))
    with torch.no_grad():
        fq._parameters[fq.learns].neg_()
    assert fq.scale.tolist() == [0.5]
    with torch.no_grad():
        fq._parameters[fq.learns].zero_()
    assert fq.scale.tolist() == [2.0**-40]


@KINDS
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_scale_that_is_no_number_raises_with_the_name(kind, bad):
    fq = kind(name="conv1")
    fq.observed.fill_(True)
    fq.eval()
    with torch.no_grad():
        fq._parameters[fq.learns].fill_(bad)
    with pytest.raises(NonFiniteError, match=r"conv1: training made the learned scale"):
        fq(torch.ones(2))


@KINDS
def test_input_gradient_is_one_in_range_and_zero_outside(kind):
    fq = calibrated(kind, torch.tensor([1.0, -1.0]))
    x = torch.tensor([0.3, -0.999, 5.0, -5.0, math.inf, -math.inf], requires_grad=True)
    fq(x).backward(torch.arange(1.0, 7.0))
    assert x.grad.tolist() == [1, 2, 0, 0, 0, 0]


@KINDS
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_results_have_the_dtype_of_the_input_and_the_scale_is_float32(kind, dtype):
    """A20."""
    x = torch.linspace(-2, 2, 101).to(dtype)
    fq = calibrated(kind, x).to(dtype)
    assert fq.scale.dtype == learned_of(fq).dtype == torch.float32
    y = fq(x.requires_grad_())
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    scale = fq.scale.detach().to(wide)
    codes = torch.clamp(torch.floor(x.detach().to(wide) / scale + 0.5), -128, 127)
    assert y.dtype == dtype
    assert torch.equal(y, (codes * scale).to(dtype))
    y.sum().backward()
    assert x.grad.dtype == dtype
    assert learned_of(fq).grad.dtype == torch.float32


@KINDS
def test_training_under_autocast_has_finite_gradients(kind):
    """A20."""
    model = nn.Sequential(nn.Linear(4, 4), kind())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(torch.randn(8, 4)).sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters())


@KINDS
def test_nan_passes_and_leaves_the_gradient_of_the_scale_finite(kind):
    """A03."""
    fq = calibrated(kind, torch.tensor([1.0]))
    x = torch.tensor([math.nan, 9.0, -math.inf])
    y = fq(x)
    scale = fq.scale.item()
    assert y[0].isnan()
    assert y[1:].tolist() == pytest.approx([127 * scale, -128 * scale])
    y[1:].sum().backward()
    assert learned_of(fq).grad.isfinite().all()


@KINDS
def test_empty_tensors_pass_in_every_state(kind):
    """A06."""
    fq = kind()
    for state in FakeQuantState:
        set_fake_quantize(fq, state)
        assert fq(torch.empty(0, 3)).shape == (0, 3)


@KINDS
@pytest.mark.parametrize("axis", [0, 1])
def test_strided_inputs_equal_contiguous_ones(kind, axis):
    data = torch.randn(4, 4, 6)
    fq = calibrated(kind, data, observer=MinMaxObserver, ch_axis=axis)
    strided = data.transpose(0, 1)
    a, b = strided.detach().requires_grad_(), strided.contiguous().requires_grad_()
    weight = torch.randn(4, 4, 6)
    results = []
    for x in (a, b):
        fq.zero_grad()
        y = fq(x)
        (y * weight).sum().backward()
        results.append((y, x.grad, learned_of(fq).grad.clone()))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])
    # sums in another order, in float64, rounded once to float32
    torch.testing.assert_close(results[0][2], results[1][2], rtol=1e-6, atol=1e-6)


@KINDS
def test_every_channel_learns_its_own_scale(kind):
    fq = per_channel(kind)
    set_fake_quantize(fq, CALIBRATION)
    fq(torch.tensor([[1.0, -1.0], [2.0, 0.0], [4.0, 1.0]]))
    set_fake_quantize(fq, QAT)
    assert torch.equal(fq.scale, torch.tensor([1.0, 2.0, 4.0]) / 127.5)
    fq(torch.tensor([[9.0, 0.0], [0.0, 0.0], [0.0, -9.0]])).sum().backward()
    assert learned_of(fq).grad[0] > 0
    assert learned_of(fq).grad[1] == 0
    assert learned_of(fq).grad[2] < 0


@KINDS
def test_channels_that_the_first_data_tell_keep_the_parameter_object(kind):
    fq = kind(MinMaxObserver, ch_axis=1)
    stepper = torch.optim.SGD(fq.parameters(), lr=0.01)
    y = fq(torch.randn(5, 3) * 20)
    assert fq.scale.shape == (3,)
    y.sum().backward()
    before = fq.scale.detach().clone()
    stepper.step()
    assert not torch.equal(fq.scale, before)


@KINDS
def test_all_tensors_follow_the_device(kind):
    """A28."""
    fq = per_channel(kind)
    assert not [k for k, v in vars(fq).items() if torch.is_tensor(v)]
    fq.to("meta")
    tensors = [*fq.parameters(), *fq.buffers()]
    assert tensors
    assert all(t.device.type == "meta" for t in tensors)


@KINDS
def test_set_qparams_is_a_scale_that_calibration_keeps(kind):
    fq = kind()
    fq.set_qparams(0.25, 0)
    assert fq.scale.tolist() == [0.25]
    set_fake_quantize(fq, CALIBRATION)
    fq(torch.tensor([9.0]))
    assert fq.scale.tolist() == [0.25]
    with pytest.raises(ArgumentError, match="zero_point"):
        fq.set_qparams(0.25, 3)


@KINDS
@pytest.mark.parametrize("option", ["saturate", "in_place", "compat_mask"])
def test_options_of_the_plain_fake_quantize_are_refused_by_name(kind, option):
    with pytest.raises(ArgumentError, match=rf"{option}: only FakeQuantize has that"):
        kind(**{option: True})


@KINDS
def test_a_fixed_scale_is_not_learned(kind):
    with pytest.raises(ArgumentError, match="FixedScaleObserver is fixed, so it can't be learned"):
        kind(FixedScaleObserver.with_args(scale=0.1))
    with pytest.raises(ArgumentError, match="FixedScaleObserver is fixed, so it can't be learned"):
        kind(FixedScaleObserver, scale=0.1)


@KINDS
def test_powers_of_two_are_refused_by_name(kind):
    with pytest.raises(NotImplementedError, match="consistency level"):
        kind().use_power_of_two()


@KINDS
def test_prints_as_the_plain_one(kind):
    fq, plain = calibrated(kind, torch.ones(3)), calibrated(FakeQuantize, torch.ones(3))
    assert repr(fq) == repr(plain).replace("FakeQuantize", kind.__name__, 1)


@KINDS
def test_a_training_step_may_call_it_twice(kind):
    fq = kind()
    stepper = torch.optim.SGD(fq.parameters(), lr=50.0)
    for _ in range(3):
        stepper.zero_grad()
        with forward_scope():
            total = fq(torch.randn(20)).sum() + fq(torch.randn(20) * 4).sum()
        total.backward()
        stepper.step()
    assert fq.scale > 0


def test_the_first_forward_of_training_starts_lsq_from_the_union_of_its_calls():
    fq = LSQ()
    with forward_scope():
        fq(torch.tensor([1.0]))
        fq(torch.tensor([-6.0]))
    assert fq.scale.tolist() == (torch.tensor([6.0]) / 127.5).tolist()
    fq(torch.tensor([60.0]))
    assert fq.scale.tolist() == (torch.tensor([6.0]) / 127.5).tolist()


def test_lsq_without_any_scale_raises_outside_of_training():
    """A07: a scale of 1 is never used silently."""
    with pytest.raises(NotCalibratedError, match=r"for: head\."):
        LSQ(name="head.").eval()(torch.ones(2))


def test_lsq_takes_the_documented_arguments():
    fq = LSQ(MinMaxObserver, 0.125, 0.0, -1, True, dtype=qint8).eval()
    assert fq.scale.tolist() == [0.125]
    assert isinstance(fq.scale, nn.Parameter)
    assert fq(torch.tensor([0.3])).item() == 0.25
    with pytest.raises(ArgumentError, match="zero_point"):
        LSQ(zero_point=1.0)


@pytest.mark.parametrize("scaled", [False, True])
def test_the_gradient_of_a_learned_step_is_the_formula(scaled):
    torch.manual_seed(1)
    x, g = torch.randn(3, 200) * 2, torch.randn(3, 200)
    fq = per_channel(LSQ, scale=torch.tensor([0.01, 0.02, 0.05]), use_grad_scaling=scaled).eval()
    fq(x).backward(g)
    s = fq.scale.detach()[:, None].double()
    ratio = x.double() / s
    code = torch.floor(ratio + 0.5)
    slope = torch.where(code < -128, -128.0, torch.where(code > 127, 127.0, code - ratio))
    want = (slope * g).sum(1) / (math.sqrt(x.numel() * 127) if scaled else 1)
    # code - x / s in float32: off by half an ulp of the code, 2**-18, for each of 200 elements
    torch.testing.assert_close(fq.scale.grad.double(), want, rtol=1e-4, atol=200 * 2.0**-18)


def test_pact_starts_at_six_without_data():
    fq = PACT().eval()
    assert fq.alpha.tolist() == [6.0]
    assert fq.scale.tolist() == [6 / 128]
    assert torch.equal(fq(torch.tensor([10.0, -10.0])), torch.tensor([127 * 6 / 128, -6.0]))
    assert PACT(alpha=3.0).scale.tolist() == [3 / 128]


def test_pact_learns_alpha_from_what_saturates_alone():
    fq = PACT().eval()
    fq(torch.tensor([7.0, 8.0, -9.0, 1.0])).backward(torch.tensor([1.0, 10.0, 100.0, 1000.0]))
    assert fq.alpha.grad.tolist() == [11 * 127 / 128 - 100]

"""Options of observers: what is refused, documented signatures, fixed scales, grids."""

import inspect

import pytest
import torch

from qtune.dtype import qint4, qint8, qint16
from qtune.errors import ArgumentError
from qtune.quantization import observer_v2
from qtune.quantizers.fixed import FixedScaleObserver
from qtune.quantizers.mse import MSEObserver
from qtune.quantizers.observer import (
    MinMaxObserver,
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
)

from .kinds import KINDS, PER_CHANNEL

by_kind = pytest.mark.parametrize("kind", PER_CHANNEL.values(), ids=list(PER_CHANNEL))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"averaging_constant": 2}, "averaging_constant"),
        ({"ch_axis": -2}, "ch_axis"),
        ({"dtype": "qint32"}, "qint32"),
        ({"qscheme": torch.per_tensor_affine}, "symmetric"),
        ({"qscheme": torch.per_channel_symmetric}, "ch_axis"),
        ({"quant_min": -127}, "quant_min"),
        ({"factory_kwargs": {"dtype": torch.half}}, "factory_kwargs"),
        ({"channel_len": 4}, "channel_len"),
    ],
)
def test_options_the_grid_does_not_have_are_refused(options, message):
    with pytest.raises(ArgumentError, match=message):
        MinMaxObserver(**options)


@by_kind
@pytest.mark.parametrize(
    ("options", "message"),
    [({"averaging_constant": -0.1}, "averaging_constant"), ({"quant_max": 100}, "quant_max")],
)
def test_every_kind_refuses_them(kind, options, message):
    with pytest.raises(ArgumentError, match=message):
        kind(**options)


@by_kind
def test_every_kind_takes_the_documented_options(kind):
    observer = kind(
        averaging_constant=0.5,
        ch_axis=-1,
        dtype=torch.qint8,
        qscheme=torch.per_tensor_symmetric,
        quant_min=-128,
        quant_max=127,
        is_sync_quantize=True,
        factory_kwargs={"device": "cpu"},
    )
    observer(torch.tensor([1.0]))
    assert 0 < observer.calculate_scale().item() <= (torch.tensor(1.0) / 127.5).item()


def documented(cls):
    """Names of the positional arguments, in their order."""
    parameters = inspect.signature(cls).parameters.values()
    return [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]


COMMON = [
    *("averaging_constant", "ch_axis", "dtype", "qscheme", "quant_min", "quant_max"),
    *("is_sync_quantize", "factory_kwargs"),
]


@pytest.mark.parametrize(
    ("cls", "own"),
    [
        (MinMaxObserver, []),
        (observer_v2.MixObserver, []),
        (MSEObserver, ["stride"]),
        (observer_v2.KLObserver, ["bins", "update_interval"]),
        (observer_v2.PercentileObserver, ["percentile", "bins"]),
        (MovingAveragePerChannelMinMaxObserver, []),
    ],
)
def test_signatures_are_those_of_the_guide(cls, own):
    assert documented(cls) == own + COMMON


def test_signature_of_the_per_tensor_kind_has_no_axis():
    assert documented(MovingAverageMinMaxObserver) == [c for c in COMMON if c != "ch_axis"]


def test_arguments_may_be_given_by_position():
    observer = observer_v2.KLObserver(600, 2, 0.5, 1, "qint16")
    assert (observer.bins, observer.update_interval) == (600, 2)
    assert (observer.averaging_constant, observer.ch_axis, observer.dtype) == (0.5, 1, qint16)
    assert MovingAverageMinMaxObserver(0.5, "qint16").dtype is qint16
    per_channel = MovingAveragePerChannelMinMaxObserver(0.5, 1, "qint16")
    assert (per_channel.ch_axis, per_channel.dtype) == (1, qint16)


def test_moving_averages_support_their_own_scheme_only():
    """The guide: the first only per_tensor_symmetric, the second only per_channel_symmetric."""
    with pytest.raises(ArgumentError, match="per_channel_symmetric"):
        MovingAverageMinMaxObserver(qscheme=torch.per_channel_symmetric)
    with pytest.raises(ArgumentError, match="qscheme must be torch.per_channel_symmetric"):
        MovingAveragePerChannelMinMaxObserver(qscheme=torch.per_tensor_symmetric)


@by_kind
def test_constant_zero_freezes_every_kind_after_its_first_result(kind):
    observer = kind(averaging_constant=0)
    observer(torch.tensor([1.0, -2.0]))
    before = [buffer.clone() for buffer in observer.buffers()]
    observer(torch.tensor([100.0]))
    assert all(map(torch.equal, before, observer.buffers()))


def test_scale_on_another_grid_equals_observing_there():
    """A36, for each observer and both directions."""
    data = torch.linspace(-3, 3, 1001) ** 3
    for kind in KINDS:
        observed = kind(dtype=qint8)
        observed(data)
        for grid in (qint4, qint8, qint16):
            direct = kind(dtype=grid)
            direct(data)
            assert torch.equal(observed.calculate_scale(grid), direct.calculate_scale())


def test_fixed_scale_ignores_data_but_keeps_their_range():
    observer = FixedScaleObserver(scale=1 / 128)
    assert observer.calculate_scale().tolist() == [1 / 128]
    observer(torch.tensor([-300.0, 5.0]))
    assert observer.calculate_scale().tolist() == [1 / 128]
    assert observer.calculate_scale(qint16).tolist() == [1 / 32768]
    assert (observer.min_val.item(), observer.max_val.item()) == (-300.0, 5.0)


def test_fixed_scale_per_channel():
    for known in ({"channel_len": 2}, {}):  # the tensor tells the number of channels
        observer = FixedScaleObserver(torch.tensor([0.5, 0.25]), ch_axis=0, **known)
        assert observer.calculate_scale().tolist() == [0.5, 0.25]
    with pytest.raises(ArgumentError, match="expected 1 or 3 positive, finite numbers"):
        FixedScaleObserver(torch.tensor([0.5, 0.25]), ch_axis=0, channel_len=3)
    with pytest.raises(ArgumentError, match="expected 1 positive, finite number but got"):
        FixedScaleObserver(torch.tensor([0.5, 0.25]))


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_fixed_scale_must_be_positive_and_finite(scale):
    with pytest.raises(ArgumentError, match="positive, finite"):
        FixedScaleObserver(scale=scale)


def test_zero_point_other_than_zero_is_refused():
    with pytest.raises(ArgumentError, match="zero_point"):
        FixedScaleObserver(scale=0.1, zero_point=3)


def test_with_args_builds_and_can_be_changed():
    constructor = MinMaxObserver.with_args(averaging_constant=0.5, dtype="qint16")
    assert constructor().dtype is qint16
    assert constructor.with_args(dtype=qint8)().averaging_constant == 0.5
    assert constructor == MinMaxObserver.with_args(averaging_constant=0.5, dtype="qint16")


def test_printed_range_is_empty_before_data():
    """As the documents print it."""
    observer = MovingAverageMinMaxObserver()
    assert repr(observer) == ("MovingAverageMinMaxObserver(min_val=tensor([]), max_val=tensor([]))")
    observer(torch.tensor([-0.5, 0.25]))
    assert repr(observer) == (
        "MovingAverageMinMaxObserver(min_val=tensor([-0.5000]), max_val=tensor([0.2500]))"
    )

import logging

import numpy as np
import pytest
import torch
from torch import nn

from qtune.arith.histogram import magnitude_counts
from qtune.arith.ranges import kl_range, least_squares_range, mse_candidates, percentile_range
from qtune.dtype import qint4, qint8, qint16
from qtune.errors import ArgumentError, NotCalibratedError
from qtune.quantizers import histogram
from qtune.quantizers.fake_quantize import FakeQuantize
from qtune.quantizers.histogram import HistogramObserver
from qtune.quantizers.kl import KLObserver
from qtune.quantizers.lsq import _LearnableFakeQuantize
from qtune.quantizers.observer import MinMaxObserver
from qtune.quantizers.scope import forward_scope
from qtune.quantizers.state import FakeQuantState, set_fake_quantize

GRIDS = (qint4, qint8, qint16)
BOTH = [KLObserver, HistogramObserver]


def batches(count=6):
    """Ranges that grow, shrink and jump; the first is all zero."""
    rng = np.random.default_rng(0)
    gains = [0.0, 1.0, 0.2, 3.0, 1e-3, 500.0][:count]
    return [(rng.laplace(0, 1, (3, 400)) * gain).astype(np.float32) for gain in gains]


def observed(cls, data, **options):
    observer = cls(**options)
    for batch in data:
        observer(torch.from_numpy(batch))
    return observer


@pytest.mark.parametrize("cls", BOTH)
@pytest.mark.parametrize("order", [1, -1])
def test_no_count_is_lost_when_the_range_grows(cls, order):
    """The counts are those of all data at once, at the last width."""
    data = batches()[::order]
    observer = observed(cls, data, averaging_constant=0.5)
    everything = np.concatenate(data)
    width = np.float32(observer.bin_width.item())
    expected = magnitude_counts(everything, width, observer.bins)
    assert observer.histogram[0].tolist() == expected.tolist()
    assert observer.histogram.sum() == everything.size
    assert observer.peak.item() == np.abs(everything).max()


def test_bins_double_and_stay_as_many():
    observer = KLObserver(bins=200)
    observer(torch.tensor([1.0]))
    width = observer.bin_width.item()
    observer(torch.tensor([5.0]))
    assert observer.bin_width.item() == 8 * width
    assert observer.histogram.shape == (1, 200)
    observer(torch.tensor([8.0]))
    assert observer.bin_width.item() == 8 * width
    observer(torch.tensor([8.001]))
    assert observer.bin_width.item() == 16 * width


@pytest.mark.parametrize("bins", [129, 512])
def test_kl_is_the_plain_search_over_all_data(bins):
    observer = observed(KLObserver, batches(4), bins=bins)
    state = (observer.histogram[0].numpy(), observer.bin_width.item(), observer.peak.item())
    assert observer.absmax[:, 0].tolist() == [float(kl_range(*state, grid)) for grid in GRIDS]
    assert bins == 129 or observer.absmax[1] < observer.peak, "the tail is cut"


def test_histogram_observer_is_the_plain_search_over_all_data():
    observer = observed(HistogramObserver, batches(4))
    counts, width = observer.histogram[0].numpy(), observer.bin_width.item()
    tried = mse_candidates(observer.peak.item(), 1)
    expected = [float(least_squares_range(counts, width, tried, grid)) for grid in GRIDS]
    assert observer.absmax[:, 0].tolist() == expected
    share = observed(
        HistogramObserver, batches(4), method="percentile", method_kwargs={"percentile": 99}
    )
    expected = float(percentile_range(counts, width, observer.peak.item(), 99))
    assert share.absmax[:, 0].tolist() == [expected] * 3


@pytest.mark.parametrize("interval", [1, 2, 3])
def test_update_interval_only_delays_the_search(interval):
    data = batches()
    every, some = KLObserver(), KLObserver(update_interval=interval)
    last = torch.zeros_like(some.absmax)
    for index, batch in enumerate(data, start=1):
        every(torch.from_numpy(batch))
        some(torch.from_numpy(batch))
        assert bool(some.observed) == (index >= interval)
        if index % interval == 0:
            last = every.absmax.clone()
        assert torch.equal(some.absmax, last)  # what came since the last search does not count
    assert torch.equal(some.min_val, every.min_val)


def test_interval_beyond_the_data_leaves_no_scale():
    """The guide: no min and max are computed then."""
    with pytest.raises(NotCalibratedError):
        observed(KLObserver, batches(), update_interval=7).calculate_scale()
    fq = FakeQuantize(KLObserver, update_interval=7, name="stem")
    set_fake_quantize(fq, FakeQuantState.CALIBRATION)
    for batch in batches(3):
        fq(torch.from_numpy(batch))
    set_fake_quantize(fq, FakeQuantState.VALIDATION)
    with pytest.raises(NotCalibratedError, match=r"stem \(update_interval 7 is more than the 3"):
        fq(torch.ones(3))


def test_calls_of_one_forward_count_as_one_batch():
    observer = KLObserver(update_interval=2)
    for _ in range(2):
        assert not observer.observed
        with forward_scope():
            for part in (1.0, 2.0, 3.0):
                observer(torch.linspace(-part, part, 100))
    assert observer.observed
    assert observer.histogram.sum() == 600


def test_averaging_constant_moves_only_the_printed_range():
    slow, fast = (
        observed(HistogramObserver, batches(4), averaging_constant=c) for c in (0.01, 1.0)
    )
    assert torch.equal(slow.absmax, fast.absmax)
    assert fast.max_val.item() == batches(4)[-1].max()
    assert slow.max_val.item() != fast.max_val.item()


@pytest.mark.parametrize("bins", [128, 0, 1.5, True])
def test_kl_needs_more_bins_than_codes(bins):
    with pytest.raises(ArgumentError, match="bins: expected a whole number from 129"):
        KLObserver(bins=bins)


@pytest.mark.parametrize("interval", [0, -1, 1.0])
def test_update_interval_must_be_a_positive_whole_number(interval):
    with pytest.raises(ArgumentError, match="update_interval"):
        KLObserver(update_interval=interval)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "kl"}, "mse, percentile"),
        ({"method": "mse", "method_kwargs": {"percentile": 99}}, "mse takes stride only"),
        ({"method": "mse", "method_kwargs": {"stride": 0}}, "stride"),
        ({"method": "percentile", "method_kwargs": {"percentile": 0}}, "percentile"),
    ],
)
def test_methods_and_their_arguments_are_checked(options, message):
    with pytest.raises(ArgumentError, match=message):
        HistogramObserver(**options)
    with pytest.raises(ArgumentError, match=message):
        HistogramObserver.reset_scale(model(), **options)


class Net(nn.Module):
    def __init__(self, observer=HistogramObserver):
        super().__init__()
        self.a = FakeQuantize(observer)
        self.b = FakeQuantize(observer, dtype="qint16")
        self.head = nn.Sequential(FakeQuantize(observer), FakeQuantize(MinMaxObserver))

    def forward(self, x):
        return self.head(self.b(self.a(x)))


def model(data=(), observer=HistogramObserver):
    net = Net(observer)
    set_fake_quantize(net, FakeQuantState.CALIBRATION)
    for batch in data:
        net(torch.from_numpy(batch))
    set_fake_quantize(net, FakeQuantState.VALIDATION)
    return net


def scales(net):
    return {name: m.scale.item() for name, m in net.named_modules() if hasattr(m, "set_dtype")}


@pytest.mark.parametrize(
    ("method", "argument"),
    [("percentile", {"percentile": 99.0}), ("percentile", None), ("mse", {"stride": 20})],
)
def test_reset_scale_equals_a_calibration_with_that_method(method, argument):
    net = model(batches(4))
    min_max = scales(net)["head.1"]
    HistogramObserver.reset_scale(net, method=method, method_kwargs=argument)
    chosen = HistogramObserver.with_args(method=method, method_kwargs=argument)
    assert scales(net) == scales(model(batches(4), chosen))
    assert scales(net)["head.1"] == min_max


def test_reset_scale_keeps_to_the_prefix_and_the_dtype():
    before = scales(model(batches(4)))
    arguments = {"method": "percentile", "method_kwargs": {"percentile": 50.0}}
    for options, changed in (
        ({"prefix": "head"}, {"head.0"}),
        ({"prefix": "a"}, {"a"}),
        ({"dtype": "qint16"}, {"b"}),
        ({"dtype": qint8}, {"a", "head.0"}),
        ({}, {"a", "b", "head.0"}),
    ):
        net = model(batches(4))
        HistogramObserver.reset_scale(net, **arguments, **options)
        after = scales(net)
        assert {name for name in after if after[name] != before[name]} == changed


def test_reset_scale_needs_histograms_of_data():
    with pytest.raises(ArgumentError, match="no fake-quantize with a HistogramObserver under 'x'"):
        HistogramObserver.reset_scale(model(batches(2)), prefix="x")
    with pytest.raises(NotCalibratedError, match="no histogram of data in: a, b, head.0"):
        HistogramObserver.reset_scale(model())


def test_an_interrupted_reset_scale_changes_nothing(monkeypatch):
    net, calls = model(batches(4)), []
    before, methods = {k: v.clone() for k, v in net.state_dict().items()}, observers_of(net)

    def search(*arguments):
        calls.append(1)
        if len(calls) == 5:  # in the second fake-quantize
            raise KeyboardInterrupt
        return own(*arguments)

    own = histogram.percentile_range
    monkeypatch.setattr(histogram, "percentile_range", search)
    with pytest.raises(KeyboardInterrupt):
        HistogramObserver.reset_scale(net, method_kwargs={"percentile": 50.0})
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert observers_of(net) == methods


def observers_of(net):
    found = [m for m in net.modules() if isinstance(m, HistogramObserver)]
    return [(m.method, m.method_argument, m._is_partial) for m in found]


def test_reset_scale_works_on_a_loaded_state():
    net, fresh = model(batches(4)), model()
    fresh.load_state_dict(net.state_dict())
    for each in (net, fresh):
        HistogramObserver.reset_scale(each, method_kwargs={"percentile": 90.0})
    assert scales(fresh) == scales(net)


def test_reset_scale_also_sets_learned_scales():
    fq = _LearnableFakeQuantize(HistogramObserver)
    fq.state = FakeQuantState.CALIBRATION
    for batch in batches(4):
        fq(torch.from_numpy(batch))
    before = fq.scale.item()
    HistogramObserver.reset_scale(fq, method_kwargs={"percentile": 50.0})
    assert fq.scale.item() < before / 2
    assert fq.scale.item() == fq.activation_post_process.calculate_scale().item()


@pytest.mark.parametrize("cls", BOTH)
def test_the_range_may_grow_from_the_smallest_to_the_largest_number(cls):
    observer = cls()
    for value in (1e-45, 1e-38, 1.0, 3.4e38):
        observer(torch.tensor([value, 0.0]))
        assert observer.bin_width.isfinite().all()
        assert observer.bin_width.item() * observer.bins >= observer.peak.item()
    assert observer.histogram.sum() == 8
    assert observer.absmax[1].item() == pytest.approx(3.4e38, rel=0.02)  # a step or two of mse


@pytest.mark.parametrize("cls", BOTH)
def test_forgetting_starts_from_nothing(cls):
    observer, fresh = observed(cls, batches(4)), cls()
    observer.forget()
    for each in (observer, fresh):
        each(torch.tensor([1.0, -0.5]))
    assert all(map(torch.equal, observer.buffers(), fresh.buffers()))


def test_a_scale_given_by_hand_survives_reset():
    net = model(batches(4))
    net.a.set_qparams(0.25)
    HistogramObserver.reset_scale(net)
    assert net.a.scale.item() == 0.25


def test_calibration_goes_on_from_a_saved_histogram():
    data = batches()
    whole, first = observed(HistogramObserver, data), observed(HistogramObserver, data[:3])
    later = HistogramObserver()
    later.load_state_dict(first.state_dict())
    for batch in data[3:]:
        later(torch.from_numpy(batch))
    for name in ("histogram", "bin_width", "peak", "absmax"):
        assert torch.equal(getattr(later, name), getattr(whole, name))


@pytest.mark.parametrize("cls", BOTH)
def test_new_data_move_a_loaded_scale_by_the_constant(cls):
    """A histogram that does not hold the data of the loaded scale does not throw that away."""
    loaded = observed(MinMaxObserver, batches(2))
    observer = cls(averaging_constant=0.25)
    observer(torch.tensor([1000.0]))
    observer.load_state_dict(loaded.state_dict())
    assert not observer.histogram.any()
    batch = torch.from_numpy(batches(4)[3])
    observer(batch)
    alone = cls()
    alone(batch)
    expected = loaded.absmax + 0.25 * (alone.absmax - loaded.absmax)
    assert torch.equal(observer.absmax, expected)


def test_histogram_with_other_bins_is_left_aside_with_a_warning(caplog):
    saved = observed(HistogramObserver, batches(2), bins=100)
    observer = HistogramObserver(bins=200)
    with caplog.at_level(logging.WARNING):
        observer.load_state_dict(saved.state_dict())
    assert "histogram of shape (1, 100) is not taken" in caplog.text
    assert torch.equal(observer.absmax, saved.absmax)
    assert not observer.has_data

import logging

import pytest
import torch

from qtune.errors import ArgumentError, NonFiniteError, NotCalibratedError
from qtune.quantizers.observer import (
    MinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
)
from qtune.quantizers.scope import forward_scope

from .kinds import KINDS, PER_CHANNEL

by_kind = pytest.mark.parametrize("kind", PER_CHANNEL.values(), ids=list(PER_CHANNEL))


def scale8(absmax):
    return torch.tensor([absmax], dtype=torch.float32) / 127.5


@pytest.mark.parametrize(
    ("absmax", "expected"),
    [
        (0.9998382, "0.0078419"),
        (0.9990171, "0.0078354"),
        (1.47, "0.0115294"),
        (2.9943717, "0.0234853"),
    ],
)
def test_min_max_scales_are_the_published_ones(absmax, expected):
    """numerics.md section 6."""
    observer = MinMaxObserver()
    observer(torch.tensor([0.1, -absmax]))
    assert f"{observer.calculate_scale().item():.7f}" == expected


def test_int16_scale_reaches_the_published_largest_value():
    observer = MinMaxObserver(dtype="qint16")
    observer(torch.tensor([1.0]))
    assert f"{(observer.calculate_scale() * 32767).item():.7f}" == "0.9999847"


def test_first_batch_sets_and_later_ones_move_by_the_constant():
    observer = MinMaxObserver(averaging_constant=0.25)
    observer(torch.tensor([-1.0, 2.0]))
    observer(torch.tensor([-3.0, 4.0]))
    assert observer.min_val.tolist() == [-1.5]
    assert observer.max_val.tolist() == [2.5]
    observer(torch.tensor([0.0, 0.5]))
    assert observer.min_val.tolist() == [-1.125]
    assert observer.max_val.tolist() == [2.0]


def test_documented_default_constant_is_one_hundredth():
    observer = MinMaxObserver()
    observer(torch.tensor([1.0]))
    observer(torch.tensor([2.0]))
    expected = torch.tensor(1.0) + 0.01 * (torch.tensor(2.0) - torch.tensor(1.0))
    assert observer.max_val.item() == expected.item()


def test_constant_zero_freezes_after_the_first_batch():
    observer = MinMaxObserver(averaging_constant=0)
    observer(torch.tensor([1.0]))
    observer(torch.tensor([100.0]))
    assert observer.max_val.tolist() == [1.0]


def test_constant_one_takes_the_latest_batch_exactly():
    observer = MinMaxObserver(averaging_constant=1)
    for value in (0.1, 123.456, 0.3):
        observer(torch.tensor([value]))
    assert observer.max_val.item() == torch.tensor(0.3).item()


def test_zero_range_gives_the_documented_floor_and_recovers():
    """A01."""
    for kind in KINDS:
        observer = kind()
        for _ in range(3):
            observer(torch.zeros(4, 8))
        assert observer.calculate_scale().item() == 2.0**-23
        observer(torch.linspace(-2, 2, 4096))
        later = observer.calculate_scale().item()
        assert 0 < later <= 4 / 255 * 1.01


def test_constant_tensor_has_the_range_of_its_value():
    """A01."""
    for kind in KINDS:
        observer = kind()
        observer(torch.full((4, 8), -0.5))
        scale = observer.calculate_scale()
        assert torch.isfinite(scale).all()
        assert 0 < scale.item() <= 1 / 255 * 1.01


def test_smallest_scale_is_two_to_the_minus_forty():
    observer = MinMaxObserver()
    observer(torch.tensor([1e-30]))
    assert observer.calculate_scale().item() == 2.0**-40


@by_kind
@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_empty_tensors_change_nothing(kind, axis):
    """A06."""
    observer = kind(ch_axis=axis)
    observer(torch.empty(0, 3))
    assert not observer.observed
    observer(torch.ones(2, 3))
    before = {name: buffer.clone() for name, buffer in observer.named_buffers()}
    observer(torch.empty(0, 3))
    observer(torch.empty(2, 0))
    assert all(torch.equal(buffer, before[name]) for name, buffer in observer.named_buffers())


@by_kind
def test_half_ranges_do_not_overflow(kind):
    """A20."""
    observer = kind()
    observer(torch.tensor([59000.0, -59000.0, 1.0], dtype=torch.half))
    scale = observer.calculate_scale()
    assert scale.dtype == torch.float32
    twin = kind()
    twin(torch.tensor([59000.0, -59000.0, 1.0], dtype=torch.half).float())
    assert scale.item() == twin.calculate_scale().item()
    # the searches may cut a little of three values
    assert scale.item() == pytest.approx(scale8(59008.0).item(), rel=0.02)


@by_kind
@pytest.mark.parametrize("dtype", [torch.half, torch.bfloat16, torch.double])
@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_statistics_do_not_depend_on_the_dtype_that_holds_the_data(kind, dtype, axis):
    data = torch.randn(3, 50, generator=torch.Generator().manual_seed(0)).to(dtype)
    if dtype is torch.double:
        data = data.float().double()
    observer, twin = kind(ch_axis=axis), kind(ch_axis=axis)
    observer(data)
    twin(data.float())
    assert observer.absmax.dtype == torch.float32
    assert torch.equal(observer.absmax, twin.absmax)


@by_kind
def test_doubles_beyond_float32_are_clamped_to_it(kind):
    observer = kind()
    observer(torch.tensor([1e300, -1e300, 1.0], dtype=torch.double))
    assert torch.isfinite(observer.calculate_scale()).all()


VIEWS = [
    lambda base: base.chunk(2, 1)[1],
    lambda base: base.transpose(1, 3),
    lambda base: base[:, ::2],
    lambda base: base[:1].expand(4, 8, 6, 6),
    lambda base: base.flip(0),
    lambda base: base.contiguous(memory_format=torch.channels_last),
]


@by_kind
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("axis", [-1, 0, 1, 3])
def test_strides_do_not_change_the_statistics(kind, view, axis):
    """A19."""
    data = view(torch.randn(2, 8, 6, 6, generator=torch.Generator().manual_seed(0)))
    strided, contiguous = kind(ch_axis=axis), kind(ch_axis=axis)
    strided(data)
    contiguous(data.contiguous())
    assert torch.equal(strided.calculate_scale(), contiguous.calculate_scale())


@by_kind
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_channels_are_what_each_alone_would_be(kind, axis):
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randn(3, 4, 5, generator=generator) ** 3 * gain for gain in (1, 3)]
    together = kind(ch_axis=axis, averaging_constant=0.25)
    for batch in batches:
        together(batch)
    for channel in range(batches[0].shape[axis]):
        alone = kind(averaging_constant=0.25)
        for batch in batches:
            alone(batch.select(axis, channel))
        assert torch.equal(together.absmax[:, channel], alone.absmax[:, 0])


@by_kind
def test_a_batch_of_one_element_is_taken(kind):
    """A04."""
    observer = kind(averaging_constant=1)
    for value in (torch.tensor(-0.5), torch.tensor([0.5]), torch.tensor([[[0.5]]])):
        observer(value)
        assert 0 < observer.calculate_scale().item() <= scale8(0.5).item()


@by_kind
def test_the_same_data_give_the_same_bits(kind):
    data = torch.randn(4, 100, generator=torch.Generator().manual_seed(0))
    first, second = kind(), kind()
    first(data)
    second(data)
    for one, other in zip(first.buffers(), second.buffers(), strict=True):
        assert torch.equal(one, other)


def test_per_channel_ranges_follow_the_axis():
    observer = MovingAveragePerChannelMinMaxObserver(ch_axis=1)
    observer(torch.tensor([[1.0, 100.0], [-0.5, 3.0]]))
    assert observer.min_val.tolist() == [-0.5, 3.0]
    assert torch.equal(observer.calculate_scale(), torch.tensor([1.0, 100.0]) / 127.5)


def test_channels_that_change_are_refused():
    observer = MinMaxObserver(ch_axis=0, channel_len=3)
    with pytest.raises(ArgumentError, match="expected 3 channels along axis 0 but got 4"):
        observer(torch.ones(4, 2))


@by_kind
@pytest.mark.parametrize("axis", [-1, 0])
def test_nan_names_the_place_and_changes_nothing(kind, axis):
    observer = kind(ch_axis=axis)
    observer.name = "backbone.conv1"
    observer(torch.tensor([[1.0, -2.0]]))
    before = [buffer.clone() for buffer in observer.buffers()]
    with pytest.raises(NonFiniteError, match="backbone.conv1: NaN in the data"):
        observer(torch.tensor([[5.0, float("nan")]]))
    assert all(map(torch.equal, before, observer.buffers()))


def test_infinities_are_left_out_and_logged(caplog):
    data = torch.tensor([1.0, float("inf"), -2.0, -float("inf")])
    for kind in KINDS:
        observer = kind()
        with caplog.at_level(logging.WARNING):
            observer(data)
        twin = kind()
        twin(data[data.isfinite()])
        assert torch.equal(observer.absmax, twin.absmax)
        assert "2 infinite values left out" in caplog.text
        caplog.clear()


def test_nothing_but_infinities_raises():
    with pytest.raises(NonFiniteError, match="nothing but infinities"):
        MinMaxObserver()(torch.tensor([float("inf")]))


def test_scale_without_data_raises():
    with pytest.raises(NotCalibratedError, match="no data was observed"):
        MinMaxObserver().calculate_scale()


def test_integer_data_are_refused():
    with pytest.raises(
        ArgumentError, match=r"expected a floating tensor but got dtype torch.int64"
    ):
        MinMaxObserver()(torch.ones(2, dtype=torch.int64))


def test_state_is_constant_small_and_without_graph():
    """A05."""
    for kind in KINDS:
        observer, sizes = kind(), []
        for _ in range(4):
            with forward_scope():
                observer(torch.randn(64, 1024, requires_grad=True))
            held = list(observer.buffers())
            sizes.append(sum(b.numel() * b.element_size() for b in held))
            assert not any(b.requires_grad for b in held)
        assert sizes[-1] == sizes[0] < 1 << 20
        assert not [k for k, v in vars(observer).items() if torch.is_tensor(v)]
        assert not dict(observer.named_parameters())


def test_calls_of_one_forward_are_one_batch():
    """A08: the union of both calls sets the scale, not the average of two batches."""
    for kind in KINDS:
        observer = kind()
        with forward_scope():
            observer(torch.linspace(-1, 1, 201))
            observer(torch.linspace(-80, 80, 201))
        assert observer.calculate_scale().item() == pytest.approx(scale8(80.0).item(), rel=0.02), (
            "2 %: the mse search may cut a step or two"
        )
    observer = MinMaxObserver(averaging_constant=0.5)
    for top in (2.0, 4.0):
        with forward_scope():
            observer(torch.tensor([-1.0]))
            observer(torch.tensor([top]))
    assert observer.max_val.tolist() == [3.0]
    assert observer.min_val.tolist() == [-1.0]


def test_separate_forwards_are_separate_batches():
    observer = MinMaxObserver(averaging_constant=0.5)
    for top in (2.0, 4.0):
        observer(torch.tensor([top]))
    assert observer.max_val.tolist() == [3.0]


def test_frozen_observer_still_takes_the_whole_first_forward():
    observer = MinMaxObserver(averaging_constant=0)
    with forward_scope():
        observer(torch.tensor([1.0]))
        observer(torch.tensor([5.0]))
    observer(torch.tensor([9.0]))
    assert observer.max_val.tolist() == [5.0]

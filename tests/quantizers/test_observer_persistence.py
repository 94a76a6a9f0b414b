"""What saving, loading, copying and moving do to observers of every kind."""

import copy
import io
import itertools
import pickle

import pytest
import torch

from qtune.dtype import qint4, qint8, qint16
from qtune.quantizers.fake_quantize import FakeQuantize
from qtune.quantizers.fixed import FixedScaleObserver
from qtune.quantizers.histogram import HistogramObserver
from qtune.quantizers.kl import KLObserver
from qtune.quantizers.observer import MinMaxObserver
from qtune.quantizers.state import FakeQuantState

from .kinds import PER_CHANNEL

by_kind = pytest.mark.parametrize("kind", PER_CHANNEL.values(), ids=list(PER_CHANNEL))
DATA = torch.randn(3, 200, generator=torch.Generator().manual_seed(0)) ** 3


def quantizer(kind, state=FakeQuantState.VALIDATION, data=DATA, **options):
    fq = FakeQuantize(kind, averaging_constant=0.25, **options)
    fq.state = FakeQuantState.CALIBRATION
    if data is not None:
        fq(data)
        fq(data / 2)
    fq.state = state
    return fq


def reloaded(source, target):
    file = io.BytesIO()
    torch.save(source.state_dict(), file)
    file.seek(0)
    target.load_state_dict(torch.load(file, weights_only=True), strict=True)
    return target


def all_equal(one, other):
    names = dict(one.named_buffers()).keys()
    assert names == dict(other.named_buffers()).keys()
    return all(torch.equal(one.get_buffer(name), other.get_buffer(name)) for name in names)


@pytest.mark.parametrize("source", PER_CHANNEL)
@pytest.mark.parametrize("options", [{}, {"ch_axis": 0}], ids=["tensor", "channels"])
def test_the_state_of_any_kind_loads_strictly_into_any_other(source, options):
    """A26, in both directions: calibrated with kl, trained with min_max, and back."""
    fq = quantizer(PER_CHANNEL[source], **options)
    for target in PER_CHANNEL.values():
        for data in (None, DATA * 7):
            loaded = reloaded(fq, quantizer(target, data=data, **options))
            assert torch.equal(loaded.scale, fq.scale)
            assert torch.equal(loaded(DATA), fq(DATA))
        back = reloaded(loaded, quantizer(PER_CHANNEL[source], data=None, **options))
        assert torch.equal(back.scale, fq.scale)


@by_kind
def test_a_missing_key_of_the_common_state_is_still_an_error(kind):
    state = quantizer(kind).state_dict()
    del state["activation_post_process.absmax"]
    with pytest.raises(RuntimeError, match="absmax"):
        quantizer(MinMaxObserver).load_state_dict(state)


def test_a_key_that_no_kind_has_is_still_an_error():
    state = quantizer(MinMaxObserver).state_dict()
    state["activation_post_process.extra"] = torch.zeros(1)
    for kind in (MinMaxObserver, KLObserver, HistogramObserver):
        with pytest.raises(RuntimeError, match="extra"):
            quantizer(kind).load_state_dict(state)


def test_only_the_histogram_kind_saves_its_histogram():
    """The guide: the histogram of kl is not saved."""
    keys = {name: set(kind().state_dict()) for name, kind in PER_CHANNEL.items()}
    own = keys.pop("histogram")
    assert len({frozenset(names) for names in keys.values()}) == 1
    assert own - keys["kl"] == {"histogram", "bin_width", "peak"}


def test_loading_a_part_without_the_observer_keeps_its_histogram():
    fq = quantizer(KLObserver)
    before = fq.activation_post_process.histogram.clone()
    fq.load_state_dict({}, strict=False)
    assert torch.equal(fq.activation_post_process.histogram, before)


@by_kind
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda fq: pickle.loads(pickle.dumps(fq))])
def test_copies_go_on_like_the_original_and_share_nothing(kind, copied):
    """A25."""
    fq = quantizer(kind, FakeQuantState.CALIBRATION)
    twin = copied(fq)
    assert all_equal(twin, fq)
    before = {name: buffer.clone() for name, buffer in fq.named_buffers()}
    twin(DATA * 3)
    assert all(torch.equal(buffer, before[name]) for name, buffer in fq.named_buffers())
    fq(DATA * 3)
    assert all_equal(twin, fq)


@by_kind
@pytest.mark.parametrize("dtype", [torch.half, torch.bfloat16, torch.double])
def test_statistics_keep_their_dtype_when_the_model_changes_its_own(kind, dtype):
    fq = quantizer(kind)
    twin = copy.deepcopy(fq).to(dtype)
    assert all_equal(twin, fq)
    twin.state = FakeQuantState.CALIBRATION
    assert twin(DATA.to(dtype)).dtype == dtype


@by_kind
def test_everything_moves_with_the_device(kind):
    moved = quantizer(kind).to("meta")
    assert all(buffer.is_meta for buffer in moved.buffers())
    assert not [v for m in moved.modules() for v in vars(m).values() if torch.is_tensor(v)]


@by_kind
def test_a_state_loads_into_a_model_made_on_the_meta_device(kind):
    fq = quantizer(kind)
    fresh = FakeQuantize(kind, averaging_constant=0.25, factory_kwargs={"device": "meta"})
    fresh.load_state_dict(fq.state_dict(), assign=True)
    fresh.state = FakeQuantState.CALIBRATION
    fresh(DATA)
    assert not any(buffer.is_meta for buffer in fresh.buffers())


@by_kind
@pytest.mark.parametrize("options", [{}, {"ch_axis": 1}], ids=["tensor", "channels"])
def test_another_dtype_after_calibration_equals_a_calibration_in_it(kind, options):
    """A36, each pair of dtypes, there and back."""
    data = DATA[:, :5]
    fresh = {g: quantizer(kind, data=data, dtype=g, **options) for g in (qint4, qint8, qint16)}
    for old, new in itertools.permutations(fresh, 2):
        fq = copy.deepcopy(fresh[old])
        fq.set_dtype(new)
        assert torch.equal(fq.scale, fresh[new].scale)
        fq.set_dtype(old)
        assert torch.equal(fq.scale, fresh[old].scale)


@by_kind
def test_a_loaded_state_follows_the_dtype_of_the_model(kind):
    fq = quantizer(kind, dtype=qint8)
    loaded = reloaded(fq, quantizer(kind, data=None, dtype=qint16))
    fq.set_dtype(qint16)
    assert torch.equal(loaded.scale, fq.scale)


@by_kind
def test_a_fixed_scale_keeps_its_own_over_any_loaded_state(kind):
    fq = quantizer(kind)
    fixed = FakeQuantize(FixedScaleObserver, scale=0.25)
    reloaded(fq, fixed)
    assert fixed.scale.tolist() == [0.25]
    back = reloaded(fixed, quantizer(kind, data=None))
    assert back.scale.tolist() == [0.25]

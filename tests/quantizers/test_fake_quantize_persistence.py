import copy
import io
import logging
import pickle

import pytest
import torch

from qtune.dtype import qint8, qint16
from qtune.errors import NotCalibratedError
from qtune.quantizers.fake_quantize import FakeQuantize
from qtune.quantizers.fixed import FixedScaleObserver
from qtune.quantizers.mse import MSEObserver
from qtune.quantizers.observer import (
    MinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
)
from qtune.quantizers.state import FakeQuantState

CALIBRATION, VALIDATION, QAT = (
    FakeQuantState.CALIBRATION,
    FakeQuantState.VALIDATION,
    FakeQuantState.QAT,
)
FLOAT = FakeQuantState._FLOAT


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


def test_deepcopy_shares_nothing_and_keeps_everything():
    """A25."""
    x = torch.linspace(-1, 1, 11)
    fq = calibrated(x, name="a")
    before = copy.deepcopy(fq.state_dict())
    twin = copy.deepcopy(fq)
    assert (twin.state, twin.name, twin.dtype) == (VALIDATION, "a", qint8)
    assert torch.equal(twin(x), fq(x))
    twin.state = QAT
    twin.train()(x * 100)
    assert all(torch.equal(v, before[k]) for k, v in fq.state_dict().items())
    assert fq.state is VALIDATION


def test_pickle_keeps_everything():
    x = torch.linspace(-1, 1, 11)
    fq = calibrated(x, name="a")
    twin = pickle.loads(pickle.dumps(fq))
    assert torch.equal(twin(x), fq(x))
    assert (twin.state, twin.name) == (VALIDATION, "a")
    twin.load_state_dict(fq.state_dict())


def reload(source, target):
    file = io.BytesIO()
    torch.save(source.state_dict(), file)
    file.seek(0)
    return target.load_state_dict(torch.load(file, weights_only=True), strict=True)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (MSEObserver, MinMaxObserver),
        (MinMaxObserver, MSEObserver),
        (MinMaxObserver, MinMaxObserver),
    ],
)
def test_state_loads_strictly_across_observers(source, target):
    """A26, in both directions."""
    x = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    for options in ({}, {"ch_axis": 0, "channel_len": 3}):
        fq = calibrated(x, observer=source, **options)
        fresh = FakeQuantize(target, **options)
        reload(fq, fresh)
        fresh.state = VALIDATION
        assert torch.equal(fresh(x), fq(x))
        assert fresh.observed


def test_state_of_another_size_is_refused_and_named():
    """A26."""
    with pytest.raises(RuntimeError, match="scale"):
        weight_quantizer(3).load_state_dict(weight_quantizer(4).state_dict())


def test_state_loads_where_the_size_was_left_open():
    """A26: no size 1 before the first use and C after it."""
    x = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))
    fq = calibrated(x, observer=MinMaxObserver, ch_axis=0)
    fresh = FakeQuantize(MinMaxObserver, ch_axis=0)
    reload(fq, fresh)
    fresh.state = VALIDATION
    assert torch.equal(fresh(x), fq(x))


def test_loading_does_not_change_the_state():
    """A27."""
    x = torch.tensor([1.0])
    calibrating = calibrated(x, state=CALIBRATION)
    fresh = FakeQuantize().eval()
    fresh.state = VALIDATION
    reload(calibrating, fresh)
    assert fresh.state is VALIDATION
    scale = fresh.scale.clone()
    fresh(x * 10)
    assert torch.equal(fresh.scale, scale)


def test_train_and_eval_do_not_change_the_state():
    fq = FakeQuantize()
    for state in FakeQuantState:
        fq.state = state
        assert fq.eval().state is fq.train().state is state


def test_int8_state_loaded_into_an_int16_model_gives_the_int16_scale():
    """A36 by way of a checkpoint: the file's int8 scale would be 257 times too large."""
    x = torch.linspace(-3, 3, 101)
    fresh = FakeQuantize(dtype=qint16)
    reload(calibrated(x), fresh)
    assert torch.equal(fresh.scale, calibrated(x, dtype=qint16).scale)


def test_scale_edited_in_a_state_file_is_kept():
    state = calibrated(torch.tensor([1.0])).state_dict()
    state["scale"] = torch.tensor([0.25])
    fresh = FakeQuantize()
    fresh.load_state_dict(state)
    assert fresh.scale.tolist() == [0.25]
    fresh(torch.tensor([1000.0]))
    assert fresh.scale.tolist() == [0.25]


def test_uncalibrated_state_stays_uncalibrated():
    fresh = FakeQuantize(name="a").eval()
    reload(FakeQuantize(), fresh)
    with pytest.raises(NotCalibratedError):
        fresh(torch.ones(1))


def test_configured_fixed_scale_survives_a_calibrated_state(caplog):
    fixed = FakeQuantize(FixedScaleObserver, scale=1 / 128, name="quant")
    with caplog.at_level(logging.WARNING):
        reload(calibrated(torch.tensor([3.0])), fixed)
    assert fixed.scale.tolist() == [1 / 128]
    assert "quant: the loaded scale" in caplog.text
    reload(FakeQuantize(), fixed)
    assert fixed.observed
    assert fixed.scale.tolist() == [1 / 128]


def test_a_fixed_scale_gives_way_to_one_that_was_set_by_hand():
    by_hand, fixed = FakeQuantize(), FakeQuantize(FixedScaleObserver, scale=1 / 128)
    by_hand.set_qparams(0.25)
    reload(by_hand, fixed)
    assert fixed.scale.tolist() == [0.25]
    assert fixed.activation_post_process.calculate_scale().tolist() == [0.25]


def test_only_buffers_hold_tensors_and_they_follow_the_device():
    """A28."""
    for fq in (calibrated(torch.randn(3, 4)), weight_quantizer(3)):
        for module in fq.modules():
            assert not [k for k, v in vars(module).items() if torch.is_tensor(v)]
        fq.to("meta")
        assert {b.device.type for b in fq.buffers()} == {"meta"}
    built = FakeQuantize(factory_kwargs={"device": "meta"})
    assert {b.device.type for b in built.buffers()} == {"meta"}

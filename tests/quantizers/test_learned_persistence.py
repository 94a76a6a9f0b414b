"""States of LSQ and PACT: loaded both ways, copied, pickled, on another grid."""

import copy
import io
import logging
import pickle

import pytest
import torch

from qtune.dtype import qint8, qint16
from qtune.quantizers.fake_quantize import FakeQuantize
from qtune.quantizers.fixed import FixedScaleObserver
from qtune.quantizers.state import set_fake_quantize

from .learned import (
    CALIBRATION,
    KINDS,
    LSQ,
    PACT,
    QAT,
    VALIDATION,
    calibrated,
    learned_of,
    per_channel,
)


def reload(source, target, strict=True):
    file = io.BytesIO()
    torch.save(source.state_dict(), file)
    file.seek(0)
    target.load_state_dict(torch.load(file, weights_only=True), strict=strict)
    return target


@pytest.mark.parametrize("source", [FakeQuantize, LSQ, PACT])
@pytest.mark.parametrize("target", [FakeQuantize, LSQ, PACT])
@pytest.mark.parametrize("trained", [False, True])
def test_states_load_strictly_both_ways(source, target, trained):
    """A26."""
    data = torch.randn(3, 50) * torch.tensor([[1.0], [0.01], [30.0]])
    fq = per_channel(source)
    set_fake_quantize(fq, CALIBRATION)
    fq(data)
    set_fake_quantize(fq, VALIDATION)
    if trained and source is not FakeQuantize:
        with torch.no_grad():
            learned_of(fq).mul_(0.7319)
    for channels in (3, None):
        other = reload(fq, per_channel(target, channels).eval())
        set_fake_quantize(other, VALIDATION)
        assert torch.equal(other.scale, fq.scale)
        assert torch.equal(other(data), fq(data))
        back = reload(other, per_channel(source).eval())
        assert torch.equal(back.scale, fq.scale)


@KINDS
def test_a_loaded_learned_scale_goes_on_learning(kind):
    fq = calibrated(kind, torch.randn(100))
    with torch.no_grad():
        learned_of(fq).mul_(0.5)
    other = reload(fq, kind())
    set_fake_quantize(other, QAT)
    before = other.scale.detach().clone()
    stepper = torch.optim.SGD(other.parameters(), lr=1e-3)
    other(torch.randn(100) * 9).sum().backward()
    stepper.step()
    assert torch.equal(before, fq.scale)
    assert not torch.equal(other.scale, before)


@KINDS
def test_a_learned_int8_state_keeps_its_range_in_an_int16_model(kind):
    fq = calibrated(kind, torch.tensor([1.0]))
    with torch.no_grad():
        learned_of(fq).mul_(0.75)
    for target in (kind, FakeQuantize):
        other = reload(fq, target(dtype=qint16))
        assert torch.equal(other.scale, fq.scale / 256)


@KINDS
def test_dtype_change_follows_the_statistics_until_the_scale_is_learned(kind):
    fq = calibrated(kind, torch.tensor([1.0]))
    start = fq.scale.detach().clone()
    fq.set_dtype(qint16)
    assert fq.scale.tolist() == (torch.ones(1) / 32767.5).tolist()
    fq.set_dtype(qint8)
    assert torch.equal(fq.scale, start)
    with torch.no_grad():
        learned_of(fq).mul_(0.75)
    learned = fq.scale.detach().clone()
    fq.set_dtype(qint16)
    assert torch.equal(fq.scale, learned / 256)
    fq.set_dtype(qint8)
    assert torch.equal(fq.scale, learned)


@KINDS
def test_deepcopy_and_pickle_share_nothing_and_keep_everything(kind):
    """A25."""
    data = torch.randn(40)
    fq = calibrated(kind, data)
    for twin in (copy.deepcopy(fq), pickle.loads(pickle.dumps(fq))):
        assert twin.state is VALIDATION
        assert torch.equal(twin(data), fq(data))
        before = fq.scale.detach().clone()
        with torch.no_grad():
            learned_of(twin).mul_(3)
        assert torch.equal(fq.scale, before)
        assert torch.equal(twin.scale, before * 3)


def test_pact_keeps_its_start_where_an_uncalibrated_state_is_loaded():
    fq = reload(FakeQuantize(), PACT(alpha=4.0).eval())
    assert fq.alpha.tolist() == [4.0]
    assert torch.equal(fq(torch.tensor([9.0])), torch.tensor([127 * 4 / 128]))


def test_a_fixed_configuration_is_not_moved_by_a_learned_state(caplog):
    fq = calibrated(LSQ, torch.ones(3))
    with torch.no_grad():
        fq.scale.mul_(0.3)
    with caplog.at_level(logging.WARNING):
        other = reload(fq, FakeQuantize(FixedScaleObserver, scale=0.5))
    assert other.scale.tolist() == [0.5]
    assert "is not taken" in caplog.text

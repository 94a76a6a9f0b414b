"""The learned fake-quantizes and what their tests build."""

import pytest
import torch

from qtune.quantizers.lsq import _LearnableFakeQuantize
from qtune.quantizers.observer import MovingAveragePerChannelMinMaxObserver
from qtune.quantizers.pact import PACTFakeQuantize
from qtune.quantizers.state import FakeQuantState, set_fake_quantize

QAT, CALIBRATION, VALIDATION, FLOAT = FakeQuantState
LSQ, PACT = _LearnableFakeQuantize, PACTFakeQuantize
KINDS = pytest.mark.parametrize("kind", [LSQ, PACT], ids=["lsq", "pact"])


def expected(x, scale, low=-128, high=127):
    """numerics.md section 1 in plain torch."""
    return torch.clamp(torch.floor(x.float() / scale + 0.5), low, high) * scale


def calibrated(kind, data, **options):
    fq = kind(**options)
    set_fake_quantize(fq, CALIBRATION)
    with torch.no_grad():
        fq(data)
    set_fake_quantize(fq, VALIDATION)
    return fq


def per_channel(kind, channels=3, **options):
    return kind(MovingAveragePerChannelMinMaxObserver, ch_axis=0, channel_len=channels, **options)


def learned_of(fq):
    """The one parameter."""
    [(_, parameter)] = fq.named_parameters()
    return parameter

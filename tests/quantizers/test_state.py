import logging

import pytest
from torch import nn

from qtune.errors import ArgumentError
from qtune.quantizers.fake_quantize import FakeQuantize
from qtune.quantizers.state import FakeQuantState, set_fake_quantize


def model():
    return nn.ModuleDict({"head": nn.Sequential(FakeQuantize()), "tail": FakeQuantize()})


def test_documented_members_and_values():
    assert [(s.name, s.value) for s in FakeQuantState][:3] == [
        ("QAT", "qat"),
        ("CALIBRATION", "calibration"),
        ("VALIDATION", "validation"),
    ]


def test_state_after_construction_is_qat():
    assert FakeQuantize().state is FakeQuantState.QAT


def test_sets_every_fake_quantize_of_the_model():
    m = model()
    set_fake_quantize(m, FakeQuantState.VALIDATION)
    assert {m["head"][0].state, m["tail"].state} == {FakeQuantState.VALIDATION}


def test_works_on_sub_modules():
    m = model()
    set_fake_quantize(m["head"], FakeQuantState.CALIBRATION)
    assert m["head"][0].state is FakeQuantState.CALIBRATION
    assert m["tail"].state is FakeQuantState.QAT


def test_other_values_are_refused():
    with pytest.raises(ArgumentError, match="expected a FakeQuantState"):
        set_fake_quantize(model(), "calibration")


def test_a_model_without_fake_quantize_is_noted(caplog):
    with caplog.at_level(logging.WARNING):
        set_fake_quantize(nn.Linear(1, 1), FakeQuantState.CALIBRATION)
    assert "Linear holds no fake-quantize; was it prepared?" in caplog.text

"""The voice net: six files of one net, the state that it carries, a power spectrum in int8."""

from __future__ import annotations

import numpy as np
import pytest
import voice
import weights
from repair import calibrating, enough, int16, worst_nodes
from subjects import MAX

from pytest_qtune import assert_consistency
from qtune.errors import OnnxImportError
from qtune.hbir.onnx_import import import_onnx
from qtune.testing.onnx_model import OnnxModel

SIZES = {"input": weights.FRAME, "state": weights.STATE}
SPECTRUM = ["/stft/Sqrt", "/stft/Add"]


@pytest.fixture(scope="session")
def voice_int8(stages_of):
    return stages_of("voice", MAX, "int8")


@pytest.fixture(scope="session")
def voice_repaired(stages_of, voice_int8):
    """As many of the worst nodes in int16 as part 2 of the talk needs."""
    order = worst_nodes("voice", voice_int8.calibrated.proto)
    count = enough("voice", order, items=167, target=0.98)
    assert order[:count] == SPECTRUM
    return stages_of("voice", int16(order[:count]), "spectrum in int16")


@pytest.mark.parametrize(
    "name", ["voice", "voice_both_rates", "voice_16k", "voice_half", "voice_cell", "voice_openvino"]
)
def test_each_file_of_the_net_imports_and_computes_what_it_says(name):
    """With an If for the rate, Ifs for sizes, none; with an LSTM, or its gates one by one."""
    states = voice.STATES if name == "voice" else [weights.STATE]
    items, _ = voice.frames(100, 1)
    ours, theirs = (
        voice.run(model, items, states)
        for model in (import_onnx(weights.model(name))[0], OnnxModel(weights.model(name)))
    )
    # float32 sums in another order, over 100 frames of carried state
    np.testing.assert_allclose(np.ravel(ours), np.ravel(theirs), atol=1e-4)


def test_a_file_for_two_rates_asks_for_one():
    """The branch for 16 kHz can't be known from the file."""
    with pytest.raises(OnnxImportError, match=r"If_0: If: .* from the input\(s\) sr\. .*constant"):
        import_onnx(weights.path("voice_both_rates"), input_shapes=SIZES)


def test_a_power_spectrum_is_lost_in_int8(voice_int8, measured):
    """127 steps up to the loudest square: what is quiet is 0, and the root makes it worse."""
    float_score, _, same, sqnr = measured("voice", voice_int8, 400, stage="calibrated")
    assert float_score >= 0.9
    assert same < 0.95
    assert sqnr < 12


def test_with_the_spectrum_in_int16_it_decides_like_float(voice_repaired, measured):
    """Over 400 frames, the integer net's own state fed back into it."""
    float_score, score, same, sqnr = measured("voice", voice_repaired, 400)
    assert same >= 0.97
    assert score >= float_score - 0.03
    assert sqnr >= 15


def test_one_frame_agrees_in_all_stages(voice_repaired):
    calls = calibrating("voice")
    assert_consistency(
        voice_repaired.float, voice_repaired.quantized_bc, inputs=calls[12], min_cosine=0.99
    )

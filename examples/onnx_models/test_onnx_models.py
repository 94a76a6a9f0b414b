"""Trained ONNX models on real data, float against integers; the debugger finds what costs."""

from __future__ import annotations

import copy

import pytest
import weights
from subjects import MAX, SUBJECTS, outputs, sqnr_db

from pytest_qtune import assert_consistency
from qtune.onnx_debug import get_sensitivity_of_nodes

MARCH = "nash-e"
CALIBRATION, ITEMS = 6, 24


def int16(*nodes):
    """The configuration with these nodes in int16."""
    config = copy.deepcopy(MAX)
    config["node_config"] = {name: {"qtype": "int16"} for name in nodes}
    return config


@pytest.fixture(scope="session")
def stages_of(qtune_onnx_stages):
    """``stages_of(subject, quant_config, label)``: all stages of a trained model."""

    def build(name, config, label):
        calibration, _ = SUBJECTS[name].data(CALIBRATION, 0)
        model = weights.model(name)
        return qtune_onnx_stages(
            model, calibration, march=MARCH, quant_config=config, name=f"{name} {label}"
        )

    return build


def measured(subject, stages):
    """Task measure in float and in integers, agreement of the two, SQNR in dB."""
    items, right = subject.data(ITEMS, 1)
    plain, integer = outputs(stages.float, items), outputs(stages.quantized_bc[0], items)
    scores = subject.score(plain, right), subject.score(integer, right)
    return (*scores, subject.agreement(integer, plain), sqnr_db(plain, integer))


def first_items(name, count):
    return SUBJECTS[name].data(count, 1)[0]


@pytest.fixture(scope="session")
def direction(stages_of):
    return stages_of("direction", MAX, "int8")


@pytest.fixture(scope="session")
def file_types(stages_of):
    return stages_of("file_types", MAX, "int8")


@pytest.fixture(scope="session")
def worst(file_types):
    """The six nodes that cost the file type net most, by the debugger."""
    calibration, _ = SUBJECTS["file_types"].data(CALIBRATION, 0)
    proto = file_types.calibrated.proto
    return list(get_sensitivity_of_nodes(proto, "sqnr", calibration, data_num=None))[:6]


@pytest.fixture(scope="session")
def repaired(stages_of, worst):
    return stages_of("file_types", int16(*worst), "six nodes in int16")


@pytest.fixture(scope="session")
def detector(stages_of):
    config = copy.deepcopy(MAX)
    config["model_config"]["all_node_type"] = "int16"
    return stages_of("detector", config, "int16")


def test_direction_in_int8_decides_like_float(direction):
    float_score, score, same, _ = measured(SUBJECTS["direction"], direction)
    assert float_score >= 0.95
    assert score >= float_score - 0.05  # one line of 24
    assert same >= 0.95
    assert_consistency(
        direction.float,
        direction.quantized_bc,
        inputs=first_items("direction", 1)[0],
        min_cosine=0.99,
    )


def test_detector_in_int16_finds_the_words_of_float(detector):
    float_score, score, same, sqnr = measured(SUBJECTS["detector"], detector)
    assert float_score >= 0.85
    assert score >= float_score - 0.05
    assert same >= 0.9
    assert sqnr >= 15


def test_file_types_are_lost_in_int8(file_types):
    float_score, score, same, _ = measured(SUBJECTS["file_types"], file_types)
    assert float_score >= 0.85
    assert same < 0.6
    assert score < float_score - 0.3


def test_the_debugger_names_the_norm(worst):
    """E(x^2) - E(x)^2 of a layer norm: two large numbers whose difference counts."""
    assert all("LayerNorm_0" in name for name in worst)


def test_with_these_six_nodes_in_int16_it_is_good(repaired):
    float_score, score, same, _ = measured(SUBJECTS["file_types"], repaired)
    assert same >= 0.9
    assert score >= float_score - 0.05


def test_the_scores_before_the_softmax_tell_more(direction):
    """Probabilities near 1 and 0 hide the nodes; ``output_node`` looks before them."""
    proto, data = direction.calibrated.proto, first_items("direction", 1)
    behind = get_sensitivity_of_nodes(proto, "sqnr", data)
    before = get_sensitivity_of_nodes(proto, "sqnr", data, output_node=_last_gemm(proto))
    worst_behind, worst_before = (
        min(v["sqnr"] for v in found.values()) for found in (behind, before)
    )
    assert worst_before < worst_behind - 10


def _last_gemm(proto):
    return [node.name for node in proto.graph.node if node.op_type in ("MatMul", "Gemm")][-1]

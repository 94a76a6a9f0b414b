"""Text direction and file types, float against integers; the debugger finds what costs."""

from __future__ import annotations

import pytest
from repair import enough, int16, worst_nodes
from subjects import MAX, SUBJECTS

from pytest_qtune import assert_consistency
from qtune.onnx_debug import get_sensitivity_of_nodes


@pytest.fixture(scope="session")
def direction(stages_of):
    return stages_of("direction", MAX, "int8")


@pytest.fixture(scope="session")
def file_types(stages_of):
    return stages_of("file_types", MAX, "int8")


@pytest.fixture(scope="session")
def worst(file_types):
    """The nodes that cost the file type net most, by the debugger."""
    return worst_nodes("file_types", file_types.calibrated.proto)


@pytest.fixture(scope="session")
def repaired(stages_of, worst):
    """As many of them in int16 as the files of part 2 need."""
    count = enough("file_types", worst, items=24, target=0.98)
    return stages_of("file_types", int16(worst[:count]), "worst nodes in int16")


def test_direction_in_int8_decides_like_float(direction, measured):
    float_score, score, same, _ = measured("direction", direction)
    assert float_score >= 0.95
    assert score >= float_score - 0.05  # one line of 24
    assert same >= 0.95
    assert_consistency(
        direction.float,
        direction.quantized_bc,
        inputs=SUBJECTS["direction"].data(1, 1)[0][0],
        min_cosine=0.99,
    )


def test_file_types_are_lost_in_int8(file_types, measured):
    float_score, score, same, _ = measured("file_types", file_types)
    assert float_score >= 0.85
    assert same < 0.6
    assert score < float_score - 0.3


def test_the_debugger_names_the_norm(worst):
    """E(x^2) - E(x)^2 of a layer norm: two large numbers whose difference counts."""
    assert all("LayerNorm_0" in name for name in worst[:6])


def test_with_the_worst_nodes_in_int16_it_is_good(repaired, measured):
    """The files that are measured took no part in choosing the nodes or their number."""
    float_score, score, same, _ = measured("file_types", repaired, 60)
    assert same >= 0.9
    assert score >= float_score - 0.05


def test_the_scores_before_the_softmax_tell_more(direction):
    """Probabilities near 1 and 0 hide the nodes; ``output_node`` looks before them."""
    proto, data = direction.calibrated.proto, SUBJECTS["direction"].data(1, 1)[0]
    behind = get_sensitivity_of_nodes(proto, "sqnr", data)
    before = get_sensitivity_of_nodes(proto, "sqnr", data, output_node=_last_gemm(proto))
    worst_behind, worst_before = (
        min(v["sqnr"] for v in found.values()) for found in (behind, before)
    )
    assert worst_before < worst_behind - 10


def _last_gemm(proto):
    return [node.name for node in proto.graph.node if node.op_type in ("MatMul", "Gemm")][-1]

"""Text on photos and lines of text: errors that add up, and how many nodes bring back what."""

from __future__ import annotations

import copy

import pytest
from repair import CHOSEN, int16, worst_nodes
from subjects import MAX

NODES = CHOSEN["detector"]
"""Chosen on pages of part 2 by ``repair.py``: minutes, so it is not done anew in each run."""


@pytest.fixture(scope="session")
def detector_int8(stages_of):
    return stages_of("detector", MAX, "int8")


@pytest.fixture(scope="session")
def detector_mixed(stages_of, detector_int8):
    order = worst_nodes("detector", detector_int8.calibrated.proto)
    return stages_of("detector", int16(order[:NODES]), f"{NODES} nodes in int16")


@pytest.fixture(scope="session")
def detector_int16(stages_of):
    config = copy.deepcopy(MAX)
    config["model_config"]["all_node_type"] = "int16"
    return stages_of("detector", config, "int16")


@pytest.fixture(scope="session")
def recognizer(stages_of):
    return stages_of("recognizer", MAX, "int8")


def test_detector_in_int8_marks_other_pixels(detector_int8, measured):
    float_score, _, same, sqnr = measured("detector", detector_int8, stage="calibrated")
    assert float_score >= 0.85
    assert same < 0.88
    assert sqnr < 12


def test_with_the_worst_nodes_in_int16_most_comes_back(detector_mixed, measured):
    """An eighth of the nodes, on pages that took no part in choosing them."""
    float_score, score, same, sqnr = measured("detector", detector_mixed)
    assert same >= 0.92
    assert score >= float_score - 0.05
    assert sqnr >= 12


def test_detector_in_int16_finds_the_words_of_float(detector_int16, measured):
    float_score, score, same, sqnr = measured("detector", detector_int16, 12)
    assert float_score >= 0.85
    assert score >= float_score - 0.05
    assert same >= 0.95
    assert sqnr >= 15


def test_recognizer_in_int8_reads_what_float_reads(recognizer, measured):
    """Few lines, since it is the largest net; ``measure.py`` reads 40."""
    float_score, score, _, _ = measured("recognizer", recognizer, 5)
    assert float_score >= 0.95
    assert score >= float_score - 0.05

"""Which nodes go to int16, and how many: ``python examples/onnx_models/repair.py [subject ...]``.

The calibration items order the nodes, items of their own choose the number. What is measured in
README.md takes no part in either.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import weights
from subjects import MAX, SUBJECTS, sqnr_db

from qtune.onnx_debug import get_sensitivity_of_nodes
from qtune.testing.onnx_stages import OnnxStages

MARCH = "nash-e"
CALIBRATION = {"voice": 24, "recognizer": 3}
"""How many items calibrate a subject; 6 where nothing is said."""
ORDERING = {"detector": 2, "recognizer": 1}
"""How many of them order the nodes, where all would take long."""
CHOSEN = {"voice": 2, "file_types": 8, "detector": 32}
"""Numbers of nodes that this script's figures spoke for: more bring little."""
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128)


def int16(nodes: Sequence[str]) -> dict[str, Any]:
    """The configuration with these nodes in int16."""
    config = copy.deepcopy(MAX)
    config["node_config"] = {name: {"qtype": "int16"} for name in nodes}
    return config


def calibrating(name: str) -> list[Any]:
    """The calibration items of a subject."""
    return SUBJECTS[name].calibration(CALIBRATION.get(name, 6))


def worst_nodes(name: str, calibrated: Any) -> list[str]:
    """All nodes of a calibrated model, those first whose quantization alone costs most."""
    data, count = calibrating(name), ORDERING.get(name)
    found = get_sensitivity_of_nodes(calibrated, "sqnr", data, data_num=count)
    return [node for node, value in found.items() if value["sqnr"] != float("inf")]


def tried(name: str, order: Sequence[str], items: int) -> Iterator[tuple[int, float, float]]:
    """For more and more nodes in int16: their number, agreement with float, and SQNR in dB.

    On ``items`` items of part 2, by the calibrated model, which onnxruntime runs.
    """
    subject, calibration = SUBJECTS[name], calibrating(name)
    data, _ = subject.data(items, 2)
    plain = None
    for count in [n for n in COUNTS if n < len(order)]:
        config = int16(order[:count])
        stages = OnnxStages(
            weights.model(subject.model), calibration, march=MARCH, quant_config=config
        )
        if plain is None:
            plain = subject.run(stages.float, data)
        got = subject.run(stages.calibrated, data)
        yield count, subject.agreement(got, plain), sqnr_db(plain, got)


def enough(name: str, order: Sequence[str], items: int, target: float) -> int:
    """The smallest number of nodes with which the agreement reaches ``target``."""
    for count, agreement, _ in tried(name, order, items):
        if agreement >= target:
            return count
    raise LookupError(f"no number of nodes reaches an agreement of {target}")


def _show(name: str) -> None:
    model = weights.model(name)
    stages = OnnxStages(model, calibrating(name), march=MARCH, quant_config=MAX)
    order = worst_nodes(name, stages.calibrated.proto)
    print(name, *order[:10], sep="\n  ", flush=True)
    items = 16 if name in ORDERING else SUBJECTS[name].items
    for count, agreement, decibel in tried(name, order, items):
        print(f"| {name} | {count} | {agreement:.3f} | {decibel:.1f} |", flush=True)


if __name__ == "__main__":
    for chosen in sys.argv[1:] or SUBJECTS:
        _show(chosen)

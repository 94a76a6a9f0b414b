"""Prints the table of README.md: ``python examples/onnx_models/measure.py [subject ...]``."""

from __future__ import annotations

import sys
from typing import Any

import weights
from subjects import MAX, SUBJECTS, Outputs, Subject, outputs, sqnr_db

from qtune.testing.onnx_stages import OnnxStages

CALIBRATION, ITEMS = 8, 40
CONFIGS: dict[str, Any] = {
    "int8, max": MAX,
    "int8, searched": None,
    "int16, max": {"model_config": {**MAX["model_config"], "all_node_type": "int16"}},
}


def rows(name: str, subject: Subject) -> None:
    """Print the rows of one subject."""
    items, right = subject.data(ITEMS, 1)
    calibration, _ = subject.data(CALIBRATION, 0)
    plain: Outputs | None = None
    for label, config in CONFIGS.items():
        stages = OnnxStages(
            weights.model(subject.model),
            calibration,
            march="nash-e",
            quant_config=config,
            name=name,
        )
        if plain is None:
            plain = outputs(stages.float, items)
            print(f"| {name} | float | {subject.score(plain, right):.3f} | | |")
        for stage in ("calibrated", "quantized_bc"):
            model = getattr(stages, stage)
            got = outputs(model if stage == "calibrated" else model[0], items)
            score, same = subject.score(got, right), subject.agreement(got, plain)
            decibel = sqnr_db(plain, got)
            print(f"| {name} | {label}, {stage} | {score:.3f} | {same:.3f} | {decibel:.1f} |")


if __name__ == "__main__":
    for chosen in sys.argv[1:] or SUBJECTS:
        rows(chosen, SUBJECTS[chosen])

"""Prints the table of README.md: ``python examples/onnx_models/measure.py [subject ...]``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import weights
from repair import CHOSEN, MARCH, int16, worst_nodes
from subjects import MAX, SUBJECTS, Outputs, Subject, sqnr_db

from qtune.testing.onnx_stages import OnnxStages

CALIBRATION = 8
CONFIGS: dict[str, Any] = {
    "int8, max": MAX,
    "int8, searched": None,
    "int16, max": {"model_config": {**MAX["model_config"], "all_node_type": "int16"}},
}


def built(name: str) -> Iterator[tuple[str, OnnxStages]]:
    """The subject's net under each configuration; last with its worst nodes in int16."""
    model, calibration = weights.model(name), SUBJECTS[name].calibration(CALIBRATION)

    def stages(config: Any) -> OnnxStages:
        return OnnxStages(model, calibration, march=MARCH, quant_config=config, name=name)

    for label, config in CONFIGS.items():
        yield label, stages(config)
    if name in CHOSEN:
        order = worst_nodes(name, stages(MAX).calibrated.proto)
        yield f"{CHOSEN[name]} nodes in int16", stages(int16(order[: CHOSEN[name]]))


def rows(name: str, subject: Subject) -> None:
    """Print the rows of one subject."""
    items, right = subject.data(subject.items, 1)
    plain: Outputs | None = None
    for label, stages in built(name):
        if plain is None:
            plain = subject.run(stages.float, items)
            print(f"| {name} | float | {subject.score(plain, right):.3f} | | |")
        for stage in ("calibrated", "quantized_bc"):
            model = getattr(stages, stage)
            got = subject.run(model if stage == "calibrated" else model[0], items)
            score, same = subject.score(got, right), subject.agreement(got, plain)
            decibel = sqnr_db(plain, got)
            line = f"| {name} | {label}, {stage} | {score:.3f} | {same:.3f} | {decibel:.1f} |"
            print(line, flush=True)


if __name__ == "__main__":
    for chosen in sys.argv[1:] or SUBJECTS:
        rows(chosen, SUBJECTS[chosen])

"""The stages of a trained model, for all tests of this folder."""

from __future__ import annotations

import pytest
import weights
from repair import MARCH, calibrating
from subjects import SUBJECTS, sqnr_db


@pytest.fixture(scope="session")
def stages_of(qtune_onnx_stages):
    """``stages_of(subject, quant_config, label)``: all stages of a trained model."""

    def build(name, config, label):
        return qtune_onnx_stages(
            weights.model(name),
            calibrating(name),
            march=MARCH,
            quant_config=config,
            name=f"{name} {label}",
        )

    return build


@pytest.fixture(scope="session")
def measured():
    """``measured(subject, stages, items, stage)``: against float, on items of part 1.

    Task measure in float and in the stage, agreement of the two, SQNR in dB.
    """

    def measure(name, stages, items=24, stage="integers"):
        subject = SUBJECTS[name]
        data, right = subject.data(items, 1)
        model = stages.quantized_bc[0] if stage == "integers" else stages.calibrated
        plain, got = subject.run(stages.float, data), subject.run(model, data)
        scores = subject.score(plain, right), subject.score(got, right)
        return (*scores, subject.agreement(got, plain), sqnr_db(plain, got))

    return measure

"""Distances of whole models in steps of their result."""

from __future__ import annotations

from qtune.testing.fuzzing.line import output_steps
from tests.ops.whole import Whole


def steps_apart(result: Whole) -> float:
    """Fake-quant against integers, in scales of the result."""
    step = output_steps(result.calib)[0]
    assert step is not None
    (fake,), (integer,) = result.fake(), result.integer()
    return float((fake - integer).abs().max()) / step

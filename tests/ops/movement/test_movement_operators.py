"""Every movement operator: float, fast, reference and ONNX Runtime agree, distance 0."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from qtune.dtype import QuantDType
from qtune.ops.registry import specs
from qtune.ops.spec import Rule

from .pipeline import DTYPES, check, random_operands

SAMPLES = 5
SAME_SCALE = [
    name
    for name, spec in specs().items()
    if spec.family == "movement" and spec.rule is Rule.INPUT_SCALE
]
"""The others rescale their operands."""


def generator(name: str, dtype: QuantDType) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(f"{name} {dtype}".encode()))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", SAME_SCALE)
def test_movement_moves_the_same_codes_in_every_implementation(
    name: str, dtype: QuantDType
) -> None:
    rng = generator(name, dtype)
    for _ in range(SAMPLES):
        sample = specs()[name].sample(rng)  # type: ignore[misc]
        check(name, random_operands(rng, sample), sample.attrs, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["cat", "stack", "setitem"])
def test_merging_operators_rescale_within_a_step(name: str, dtype: QuantDType) -> None:
    rng = generator(name, dtype)
    for _ in range(SAMPLES):
        sample = specs()[name].sample(rng)  # type: ignore[misc]
        # 1 only where the real value lies near a tie (numerics.md section 3).
        check(name, random_operands(rng, sample), sample.attrs, dtype, bar=1.0)

"""Every pool: float, fast, reference and ONNX Runtime agree; max exact, averages within a step."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from qtune.dtype import QuantDType
from qtune.ops.registry import specs

from ..movement.pipeline import DTYPES, check, random_operands

SAMPLES = 8
MAXIMA = [
    "max_pool2d",
    "max_pool1d",
    "max_pool3d",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
]
AVERAGES = ["avg_pool2d", "avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool1d"]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", MAXIMA)
def test_max_pools_take_the_same_codes(name: str, dtype: QuantDType) -> None:
    rng = np.random.default_rng(zlib.crc32(f"{name} {dtype}".encode()))
    for _ in range(SAMPLES):
        sample = specs()[name].sample(rng)  # type: ignore[misc]
        check(name, random_operands(rng, sample), sample.attrs, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", AVERAGES)
def test_average_pools_stay_within_a_step(name: str, dtype: QuantDType) -> None:
    rng = np.random.default_rng(zlib.crc32(f"{name} {dtype}".encode()))
    for _ in range(SAMPLES):
        sample = specs()[name].sample(rng)  # type: ignore[misc]
        check(name, random_operands(rng, sample), sample.attrs, dtype, bar=1.0)

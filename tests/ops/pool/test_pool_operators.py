"""Every pool: float, fast, reference and ONNX Runtime agree; max exact, averages within a step."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
import torch
from torch import nn

from qtune.dtype import QuantDType
from qtune.march import march
from qtune.ops.registry import specs
from qtune.quantization import FakeQuantState, prepare, set_fake_quantize

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


@pytest.mark.parametrize("order", [1, 2])
def test_lp_pool1d_takes_rows_without_a_batch(order: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QTUNE_RUN_DIR", "")
    model, x = nn.LPPool1d(order, 2), torch.rand(3, 8, generator=torch.Generator().manual_seed(0))
    with march("nash-e"):
        prepared = prepare(nn.Sequential(model).eval(), x).eval()
    set_fake_quantize(prepared, FakeQuantState._FLOAT)
    # 1e-5 relative: a decomposed module (numerics.md section 5)
    torch.testing.assert_close(prepared(x), model(x), rtol=1e-5, atol=1e-6)


def test_lp_pool_of_another_order_stays_float_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("QTUNE_RUN_DIR", "")
    with march("nash-e"):
        prepared = prepare(nn.Sequential(nn.LPPool2d(1.5, 2)), torch.rand(1, 2, 4, 4))
    assert ["norm_type 1 and 2, got 1.5" in op.reason for op in prepared.float_ops] == [True]

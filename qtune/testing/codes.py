"""Codes of a result: which share of them differs, which share lies at the ends of the grid."""

from __future__ import annotations

from torch import Tensor

from qtune.dtype import quant_dtype
from qtune.errors import ArgumentError


def code_shares(
    baseline: Tensor, value: Tensor, scale: float | None, dtype: str
) -> tuple[float | None, float | None]:
    """Shares (0 to 1) of the codes of ``value`` that differ from the baseline's, and that saturate.

    Both tensors hold real numbers of the same shape; ``None`` without a scale. NaN differs from
    everything. A baseline that is no multiple of the scale is rounded onto the grid.
    """
    if scale is None or value.numel() == 0:
        return None, None
    try:
        grid = quant_dtype(dtype)
    except ArgumentError:  # a scale without a grid: int32 accumulators
        return None, None
    codes = (value.double() / scale).round()
    wanted = (baseline.double() / scale).round().clamp(grid.qmin, grid.qmax)
    saturated = (codes <= grid.qmin) | (codes >= grid.qmax)
    return float((codes != wanted).double().mean()), float(saturated.double().mean())

"""What to do about one operator, from its range, scale and error (documented kinds of advice)."""

from __future__ import annotations

import torch
from torch import Tensor

from qtune.analysis.observe import OpRecord
from qtune.arith.quantize import in_range
from qtune.dtype import quant_dtype

COARSE_STEP = 1.0
"""A step larger than this leaves whole units between two codes: the range is too large."""
CLIPPED_SHARE = 1e-3
"""More than this share of the baseline's values beyond the scale is a clamp error."""


def advise(record: OpRecord, baseline: OpRecord, *, fixed_scale: bool, is_output: bool) -> str:
    """Advice for the analysed operator, in one line; empty if nothing is wrong."""
    found = []
    if not _finite(record.value) or not _finite(baseline.value):
        found.append("The result contains inf or NaN; quantization can't represent it.")
    if record.scale is None:
        return " ".join(found)
    low, high = _range(baseline.value)
    if record.scale > COARSE_STEP:
        found.append(f"Total data range {high - low:.6g} maybe too large for quantization.")
    clipped = clipped_share(baseline.value, record)
    if clipped > CLIPPED_SHARE:
        found.append(
            f"Current scale does not cover the data range: clamp error on {clipped:.2%} of the "
            "values; calibrate with more data or set a fixed scale."
        )
    if fixed_scale:
        found.append(f"Set fixed scale {record.scale:.7g}.")
    if is_output:
        found.append("The model's output is not high precision; end the model with a GEMM.")
    return " ".join(found)


def clipped_share(value: Tensor, record: OpRecord) -> float:
    """Share of finite values that the record's scale clips (numerics.md section 1)."""
    if record.scale is None or value.numel() == 0 or not value.is_floating_point():
        return 0.0
    finite = value[torch.isfinite(value)].float()
    if finite.numel() == 0:
        return 0.0
    inside = in_range(finite.numpy(), record.scale, quant_dtype(record.dtype))
    return 1.0 - float(inside.mean())


def _finite(value: Tensor) -> bool:
    return not value.is_floating_point() or bool(torch.isfinite(value).all())


def _range(value: Tensor) -> tuple[float, float]:
    finite = value[torch.isfinite(value)]
    if finite.numel() == 0:
        return 0.0, 0.0
    return float(finite.min()), float(finite.max())

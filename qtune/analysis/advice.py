"""What to do about one operator, from its range, scale and error (documented kinds of advice)."""

from __future__ import annotations

import torch
from torch import Tensor

from qtune.arith.quantize import in_range
from qtune.dtype import quant_dtype
from qtune.profiler.observe import OpRecord

COARSE_STEP = 1.0
"""A step larger than this leaves whole units between two codes: the range is too large."""
CLIPPED_SHARE = 1e-3
"""More than this share of the baseline's values beyond the scale is a clamp error."""
WIDE_RATIO = 4.0
"""A fixed scale that covers more than this times the data's range wastes two bits."""


def advise(record: OpRecord, baseline: OpRecord, *, fixed_scale: bool, is_output: bool) -> str:
    """Advice for an operator that owns the scale of ``record``, in one line; empty if all is well.

    ``is_output``: a GEMM whose result leaves the model quantized, although it could be high
    precision.
    """
    found = list(non_finite(record, baseline))
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
        found.append(_fixed(record, max(abs(low), abs(high))))
    if is_output:
        found.append(
            f"The output is {record.dtype}, not high precision; leave its qconfig to the template "
            "that gives the last GEMM torch.float32."
        )
    return " ".join(found)


def non_finite(record: OpRecord, baseline: OpRecord) -> list[str]:
    """Advice about inf and NaN in either result."""
    sides = {"baseline": baseline.value, "analysed model": record.value}
    bad = [name for name, value in sides.items() if not _finite(value)]
    return [f"The result holds inf or NaN ({' and '.join(bad)})."] if bad else []


def clipped_share(value: Tensor, record: OpRecord) -> float:
    """Share of finite values that the record's scale clips (numerics.md section 1)."""
    if record.scale is None or not value.is_floating_point():
        return 0.0
    finite = value[torch.isfinite(value)].float()
    if finite.numel() == 0:
        return 0.0
    inside = in_range(finite.cpu().numpy(), record.scale, quant_dtype(record.dtype))
    return 1.0 - float(inside.mean())


def _fixed(record: OpRecord, largest: float) -> str:
    scale = float(record.scale or 0.0)
    text = f"Set fixed scale {scale:.7g}."
    covered = scale * -quant_dtype(record.dtype).qmin
    if largest > 0 and covered > WIDE_RATIO * largest:
        text += f" It covers {covered / largest:.3g} times the range of the data."
    return text


def _finite(value: Tensor) -> bool:
    return bool(torch.isfinite(value).all())  # integers and bools are


def _range(value: Tensor) -> tuple[float, float]:
    finite = value[torch.isfinite(value)]
    if finite.numel() == 0:
        return 0.0, 0.0
    return float(finite.min()), float(finite.max())

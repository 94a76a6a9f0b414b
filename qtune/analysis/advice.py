"""What to do about one operator, from its range, scale and error (documented kinds of advice).

Judged is what the operator itself does: its scale against the baseline's values, and its error on
the baseline's input. What it merely got from operators further ahead is no reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from qtune.analysis.op_error import OpError
from qtune.arith.quantize import in_range
from qtune.dtype import quant_dtype
from qtune.profiler.pair_sums import extremes
from qtune.profiler.record import OpRecord

COARSE_STEP = 1.0
"""A step larger than this leaves whole units between two codes: the range is too large."""
CLAMP_NOISE = 0.01
"""Clipping that costs more than this share of the signal's energy is a clamp error: 20 dB, more
than rounding to int8 costs. Other data than that of the calibration is a little wider always."""
NARROW_RATIO = 1.5
"""So is a value this many times beyond the range: the analysed result is clearly narrower."""
WIDE_RATIO = 4.0
"""A fixed scale that covers more than this times the data's range wastes two bits."""
LOW_COSINE = 0.95
"""The documented bar: below it, with ranges that agree, the resolution is too low."""
LOW_SQNR = 20 * math.log10(4)
"""So is an error of more than a quarter of the signal in half of the channels (12 dB): the
documented "ATOL high", which says nothing without the size of the signal."""

Ends = tuple[float, float] | None
_HIGH_PRECISION = "leave its qconfig to the template that gives the last GEMM torch.float32"


@dataclass(frozen=True, slots=True)
class Judged:
    """The results of one operator in both models, and its own error where it has one.

    ``ends``: smallest and largest value of both results.
    """

    base: OpRecord
    record: OpRecord
    ends: tuple[Ends, Ends]
    own: OpError | None = None


def advise(judged: Judged, *, fixed_scale: bool, is_output: bool) -> str:
    """Advice for an operator that owns the scale of its result, in one line; empty if all is well.

    ``is_output``: a GEMM whose result leaves the model quantized, although it could be high
    precision. Pieces of advice are joined by ``; ``.
    """
    base, record = judged.base, judged.record
    found = [non_finite(judged)]
    if record.scale is None:
        return _joined(found)
    low, high = _range(base.value, judged.ends[0])
    if record.scale > COARSE_STEP:
        found.append(f"Total data range {high - low:.6g} maybe too large for quantization.")
    clamped = _clamped(base.value, record, max(abs(low), abs(high)))
    found.append(clamped or _rounded(judged))
    if fixed_scale:
        found.append(_fixed(record, max(abs(low), abs(high))))
    if is_output:
        found.append(f"The output is {record.dtype}, not high precision: {_HIGH_PRECISION}")
    return _joined(found)


def non_finite(judged: Judged) -> str:
    """Advice about inf and NaN in either result, where no operator before this one had them."""
    sides = {"baseline": judged.base, "analysed model": judged.record}
    ends = zip(sides, judged.ends, strict=True)
    bad = [name for name, end in ends if not _finite(end)]
    made = [name for name in bad if all(_finite(extremes(v)) for v in _computed(sides[name]))]
    return f"The result holds inf or NaN ({' and '.join(made)})" if made else ""


def clipped_share(value: Tensor, record: OpRecord) -> float:
    """Share of finite values that the record's scale clips (numerics.md section 1)."""
    if record.scale is None or not value.is_floating_point():
        return 0.0
    finite = value.detach()[torch.isfinite(value)].float()
    if finite.numel() == 0:
        return 0.0
    inside = in_range(finite.cpu().numpy(), record.scale, quant_dtype(record.dtype))
    return 1.0 - float(inside.mean())


def _clamped(value: Tensor, record: OpRecord, largest: float) -> str:
    """Advice about values of the baseline that the scale does not cover."""
    covered = _covered(record)
    if largest <= covered:
        return ""
    if largest <= NARROW_RATIO * covered and _clamp_noise(value, covered) <= CLAMP_NOISE:
        return ""
    share = clipped_share(value, record)
    return (
        f"Current scale does not cover the data range: clamp error on {share:.2%} of the values, "
        f"up to {largest:.6g} where {covered:.6g} is covered. Calibrate with more such data or set "
        "a fixed scale"
    )


def _clamp_noise(value: Tensor, covered: float) -> float:
    """Energy that is clipped away, as a share of the energy of the finite values."""
    sizes = value.detach().abs()
    beyond = sizes[sizes > covered].double()
    signal = float(sizes.square().sum())
    if not math.isfinite(signal):
        beyond = beyond[torch.isfinite(beyond)]
        signal = float(sizes[torch.isfinite(sizes)].double().square().sum())
    clipped = float((beyond - covered).square().sum())
    return clipped / signal if signal else 0.0


def _rounded(judged: Judged) -> str:
    """Advice about a resolution that is too low, by the operator's error on the same input."""
    own, dtype = judged.own, judged.record.dtype
    if own is None:
        return ""
    cosine, sqnr = own.metrics.get("COSINE"), own.channel_sqnr
    low_cosine = cosine is not None and cosine < LOW_COSINE
    if not low_cosine and (sqnr is None or not sqnr < LOW_SQNR):
        return ""
    measured = f"cosine {cosine:.4g}" if low_cosine else f"SQNR {sqnr:.3g} dB in half the channels"
    return (
        f"Rounding error: {measured} on the same input although the scale covers the range. Raise "
        f"it from {dtype} to qint16, or bring its channels to one range"
    )


def _fixed(record: OpRecord, largest: float) -> str:
    scale = float(record.scale or 0.0)
    text = f"Set fixed scale {scale:.7g}"
    covered = scale * -quant_dtype(record.dtype).qmin
    if largest > 0 and covered > WIDE_RATIO * largest:
        text += f" (it covers {covered / largest:.3g} times the range of the data)"
    return text


def _covered(record: OpRecord) -> float:
    """The largest magnitude that is not clipped."""
    return float(record.scale or 0.0) * (quant_dtype(record.dtype).qmax + 0.5)


def _joined(found: Iterable[str]) -> str:
    return "; ".join(text for text in found if text)


def _computed(record: OpRecord) -> Iterable[Tensor]:
    """The operands that come from other operators."""
    tensors = (value for value in record.inputs if isinstance(value, Tensor))
    return (value for place, value in enumerate(tensors) if place not in record.data)


def _finite(ends: Ends) -> bool:
    return ends is None or all(map(math.isfinite, ends))


def _range(value: Tensor, ends: Ends) -> tuple[float, float]:
    """Smallest and largest finite value."""
    found = ends if _finite(ends) else extremes(value[torch.isfinite(value)])
    return found or (0.0, 0.0)

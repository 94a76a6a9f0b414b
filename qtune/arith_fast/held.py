"""Held codes: the forms in which the fast kernels pass integers (see ``qtune.ops.kernel``)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from qtune.arith.rounding import Int64Array
from qtune.dtype import QuantDType, qint8, qint16, qint32
from qtune.errors import ArgumentError

ZERO = 128
"""What a held qint8 adds to its code."""

_TORCH_DTYPES = {8: torch.uint8, 4: torch.uint8, 16: torch.int16, 32: torch.int32}


def held_dtype(dtype: QuantDType) -> torch.dtype:
    """Return the torch dtype that holds codes of ``dtype``."""
    return _TORCH_DTYPES[dtype.bits]


def offset(dtype: QuantDType) -> int:
    """Return what is added to a code to hold it: 128 up to 8 bits, else 0."""
    return ZERO if dtype.bits <= qint8.bits else 0


def quant_dtype_of(held: torch.Tensor) -> QuantDType:
    """Return the dtype whose codes ``held`` holds."""
    known = {torch.uint8: qint8, torch.int16: qint16, torch.int32: qint32}
    if held.dtype not in known:
        raise ArgumentError(f"expected held codes (uint8, int16, int32), got a {held.dtype} tensor")
    return known[held.dtype]


def to_held(codes: Any, dtype: QuantDType) -> torch.Tensor:
    """Return codes (any integer array, in the range of ``dtype``) as held codes."""
    values = torch.from_numpy(np.array(codes, dtype=np.int64))
    if values.numel() and not (dtype.qmin <= int(values.min()) <= int(values.max()) <= dtype.qmax):
        raise ArgumentError(
            f"codes {int(values.min())} .. {int(values.max())} do not fit {dtype} "
            f"({dtype.qmin} .. {dtype.qmax})"
        )
    return channels_last((values + offset(dtype)).to(held_dtype(dtype)))


def from_held(held: torch.Tensor) -> Int64Array:
    """Return held codes as plain int64 codes in C order."""
    zero = offset(quant_dtype_of(held))
    return np.ascontiguousarray(held.detach().cpu().numpy().astype(np.int64) - zero)


def plain_from_held(held: torch.Tensor) -> torch.Tensor:
    """Return held codes as a new contiguous int8, int16 or int32 tensor of plain codes."""
    if quant_dtype_of(held) is qint8:
        # flipping the top bit of code + 128 gives the code in two's complement
        return (held ^ ZERO).contiguous().view(torch.int8)
    return held.clone(memory_format=torch.contiguous_format)


def held_from_plain(codes: torch.Tensor) -> torch.Tensor:
    """Return plain int8, int16 or int32 codes as held codes."""
    if codes.dtype == torch.int8:
        return channels_last(codes.view(torch.uint8) ^ ZERO)
    quant_dtype_of(codes)  # only int16 and int32 are held as they are
    return channels_last(codes)


def channels_last(x: torch.Tensor) -> torch.Tensor:
    """Return a 4-d tensor in channels_last, any other contiguous."""
    if x.dim() == 4:
        return x.contiguous(memory_format=torch.channels_last)
    return x.contiguous()

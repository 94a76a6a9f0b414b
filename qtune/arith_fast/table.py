"""Table lookups on held codes (numerics.md section 3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np
import torch

from qtune.arith.rounding import Int64Array
from qtune.arith.table import SegmentTable, lookup
from qtune.arith_fast.blocks import storage_order
from qtune.arith_fast.buffers import empty_like
from qtune.arith_fast.held import channels_last, held_dtype, offset
from qtune.arith_fast.native.lookup import gather
from qtune.dtype import QuantDType, qint8, qint16

Lookup = Callable[[torch.Tensor], torch.Tensor]


def lut8(table: Int64Array, out: QuantDType = qint8) -> Lookup:
    """Return ``kernel(held qint8) -> held out`` for 256 entries indexed by ``code + 128``."""
    entries = torch.from_numpy(np.asarray(table) + offset(out)).to(held_dtype(out))
    return lambda x: _gather(entries, x, 0)


def lut16(table: SegmentTable, out: QuantDType = qint16) -> Lookup:
    """Return ``kernel(held qint16) -> held out`` of a segment table.

    The table is unrolled over all 65536 codes once; a call is one gather.
    """
    codes = np.arange(qint16.qmin, qint16.qmax + 1)
    entries = torch.from_numpy(lookup(table, codes, out) + offset(out)).to(held_dtype(out))
    return lambda x: _gather(entries, x, -qint16.qmin)


def _gather(entries: torch.Tensor, x: torch.Tensor, shift: int) -> torch.Tensor:
    """``entries[x + shift]``, held."""
    x = channels_last(x)
    flat = cast(torch.Tensor, storage_order(x))
    result = empty_like(x, entries.dtype)
    target = cast(torch.Tensor, storage_order(result))
    gather(entries, flat, target, shift)
    return result

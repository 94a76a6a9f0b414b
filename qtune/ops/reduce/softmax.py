"""softmax: max, sub, exp table, sum, reciprocal table, mul; int16 inside (numerics.md 3).

Of scores that a mask was written into, the mask is taken out again: see masked_softmax.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from qtune.ops.attention.masked_softmax import emit_masked
from qtune.ops.attention.masking import peeled
from qtune.ops.reduce.normalizing import (
    check_dtype,
    dimension,
    exponentials,
    inverse,
    normalization,
)
from qtune.ops.registry import register
from qtune.ops.spec import Bound, DecomposeBuilder


def _decompose(builder: DecomposeBuilder, bound: Bound) -> Any:
    scores, mask = peeled(builder, bound.tensors[0])
    if mask.blocked is not None:
        dim = dimension(bound.attrs["dim"], len(builder.shape(scores)))
        check_dtype(bound.attrs["dtype"], builder.dtype(scores))
        return emit_masked(builder, scores, mask.blocked, dim, spread=mask.finite)
    parts = exponentials(builder, bound)
    factor = inverse(builder, parts.total, parts.length)
    return builder.call("mul", (parts.powers, factor), part="mul")


register(
    normalization(
        "softmax",
        "Softmax",
        torch.softmax,
        _decompose,
        (F.softmax, torch.softmax, torch.special.softmax),
        {nn.Softmax: None, nn.Softmax2d: -3},
        doc="exp(x) / sum(exp(x)) along a dimension; int16 inside",
    )
)
